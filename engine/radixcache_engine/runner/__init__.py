"""Runs batches on a model."""
