"""Decides what the next step computes; plain integers only."""
