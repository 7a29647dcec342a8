"""Seeded faults: small wrong changes to the library, each of which some test must notice."""
