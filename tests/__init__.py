"""Tests of radixcache."""
