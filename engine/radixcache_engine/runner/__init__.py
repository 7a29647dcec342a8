"""Runs batches on a model."""

from radixcache_engine.runner.runner import Runner

__all__ = ["Runner"]
