"""Code generated from ``proto/radixcache/v1`` by ``scripts/proto``; do not edit the rest by hand."""
