"""The step loop and the one interface through which everything else reaches it."""
