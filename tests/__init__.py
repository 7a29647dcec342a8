"""The tests; shared code lies in modules here and is imported as ``tests.name``."""
