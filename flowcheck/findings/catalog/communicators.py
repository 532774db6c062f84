"""What is known of each communicator: its ring, traffic, mirrored links, and what they carry."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# `text` is for people; programs read the other arguments.

COMMUNICATOR = Entry(
    "communicator.is",
    "{text}",
    also=("number", "ring", "ranks", "nodes", "gpus", "channels", "nccl"),
)
RING_ORDER = Entry("communicator.ring_order", "{text}", also=("hosts",))
"""hosts: addresses of the nodes in the order of the ring; "": no mirrored link ends there."""
CARRIES = Entry(
    "communicator.carries", "{text}", also=("protocols", "collectives", "bytes", "per_iteration")
)
"""protocols, collectives, bytes: lists of one length."""
ALGORITHM_USED = Entry("communicator.algorithm_used", "{text}", also=("algorithm", "collectives"))
SEES = Entry(
    "communicator.sees",
    "{text}",
    also=("sender", "receiver", "channel", "queue_pairs", "protocols", "messages", "bytes"),
)
COVERS = Entry(
    "communicator.covers",
    "{text}",
    also=("bytes", "once_bytes", "twice_bytes", "missing_chunks", "weights"),
)
"""once_bytes: on one mirrored link or more; twice_bytes: on two or more."""
MORE = Entry("communicator.more", "{text}", also=("links", "adds_bytes", "twice_bytes"))
"""What mirroring one more of these links would add; links: numbers of their sending nodes."""
