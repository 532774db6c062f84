"""The lab's two kinds of switch, as a test's parameters."""

from __future__ import annotations

import shutil

import pytest

NEEDS_OVS = pytest.mark.skipif(
    shutil.which("ovs-vswitchd") is None, reason="needs openvswitch-switch"
)
ONE_OVS_AT_A_TIME = pytest.mark.xdist_group("ovs")
"""It raises settings of the whole machine, which tests look at."""
OVS = pytest.param("ovs", marks=[NEEDS_OVS, ONE_OVS_AT_A_TIME])
SWITCHES = ["bridge", OVS]
