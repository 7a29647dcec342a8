"""The radixcache engine: runner, scheduler, servers and command line."""
