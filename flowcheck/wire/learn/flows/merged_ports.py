"""Connections over several ports of a NIC that NCCL takes for one, which are not followed.

Such a connection has a queue pair on each port, and each port addresses of its own. Its
clear-to-send messages go by turns: the one that allows send n on port n mod ports, so that those of
one queue pair count in steps. On one port alone they count by ones. Every send is cut over all
ports, up to 2.30 evenly, from 2.31 on by hundredths (NCCL src/transport/net_ib.cc,
NCCL_IB_MERGE_NICS, since 2.20; src/graph/topo.cc, NCCL_NET_MERGE_LEVEL, since 2.24).
"""

from __future__ import annotations

import numpy as np

from flowcheck.wire.learn.flows.grants import Grants

ENOUGH, ENOUGH_WITH_LOSS = 3, 12
"""Clear-to-send messages that tell a step, where none was lost and where some may have been. A
choice: that a mirror loses every second one of twelve is out of the question."""
MOST_PORTS = 8
"""NCCL 2.30 src/transport/net_ib/common.h, NCCL_IB_MAX_DEVS_PER_NIC."""


def ports_of(grants: Grants) -> int:
    """Ports that the connection of these clear-to-send messages has; 1 where nothing tells more."""
    indices = grants.entries.indices
    enough = ENOUGH_WITH_LOSS if grants.flow.psn_missing else ENOUGH
    if len(indices) < enough:
        return 1
    step = int(np.gcd.reduce(np.diff(indices)))
    return step if 1 < step <= MOST_PORTS else 1
