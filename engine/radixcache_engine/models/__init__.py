"""Finds, converts, loads and probes models."""
