"""Where keys and values live: block ids, their pool and its layout."""
