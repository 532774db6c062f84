"""Shared memory as Python sees it: rings, flow tables, shards, counters."""
