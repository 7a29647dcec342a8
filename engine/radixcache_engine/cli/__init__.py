"""The radixcache command."""
