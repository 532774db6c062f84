"""Tests of one group, which share something of the machine, are given to one worker."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("heeded")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="needs several workers")
def test_the_workers_heed_groups(request: pytest.FixtureRequest) -> None:
    """pytest-xdist tells groups by the ids of tests; a pytest that keeps them elsewhere drops
    them without a word."""
    if request.config.getvalue("loadgroup"):
        assert request.node.nodeid.endswith("@heeded")
