"""A cluster of the lab that stands while a block runs. Two may at once: each test file has a letter
and a network of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowcheck.lab import cluster


@contextmanager
def standing(made: cluster.Cluster) -> Iterator[cluster.Cluster]:
    """Needs root; everything of it is gone afterwards."""
    cluster.up(made)
    try:
        yield made
    finally:
        cluster.down(made.name)
