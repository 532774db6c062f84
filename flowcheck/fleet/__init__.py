"""Checkpoint nodes of one job: where copies of its shards go, and when all of them survive."""
