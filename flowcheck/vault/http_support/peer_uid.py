"""The user id at the other end of a loopback connection, from /proc/net/tcp."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
ESTABLISHED = "01"
"""include/net/tcp_states.h. In every other state the owner may be gone: it is told as 0 then."""

Address = tuple[str, int]


def owner_of_peer(peer: Address, own: Address) -> int | None:
    """The user who holds the socket `peer`, which is connected to `own`, both on this machine; None
    where the kernel does not tell. Costs a reading of the machine's TCP connections (proc(5))."""
    wanted = _written(peer), _written(own)
    version = ipaddress.ip_address(peer[0]).version
    try:
        lines = TABLES[version].read_text().splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
        if (local, remote) == wanted and state == ESTABLISHED and int(inode):
            return int(user)
    return None


def is_own_user(peer: Address, own: Address) -> bool:
    """Whether the other end is of this process's own user, or of root."""
    return owner_of_peer(peer, own) in {0, os.geteuid()}


def _written(address: Address) -> str:
    """As the tables have it: words of 32 bits in the machine's order, then the port, in hex."""
    packed = ipaddress.ip_address(address[0]).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    order = sys.byteorder
    return "".join(f"{int.from_bytes(word, order):08X}" for word in words) + f":{address[1]:04X}"
