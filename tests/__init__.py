"""Tests of radixcache and its engine."""
