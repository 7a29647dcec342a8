"""Tests; shared test code is imported from here as ``tests.name``."""
