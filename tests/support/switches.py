"""The lab's two kinds of switch, as a test's parameters."""

from __future__ import annotations

import shutil

import pytest

NEEDS_OVS = pytest.mark.skipif(
    shutil.which("ovs-vswitchd") is None, reason="needs openvswitch-switch"
)
OVS = pytest.param("ovs", marks=NEEDS_OVS)
SWITCHES = ["bridge", OVS]
