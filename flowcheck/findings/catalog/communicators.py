"""What is known of each communicator: its ring, traffic, mirrored links, and what they carry.

Arguments behind `also` are those of the whole fact; what the sentence shows is made of the entries
of parts below it. Releases before these had the sentence itself as an argument `text`; a finding of
theirs is shown as they said it.
"""

from __future__ import annotations

from flowcheck.findings.finding import Entry

COMMUNICATOR = Entry(
    "communicator.is",
    "Communicator {number}: {parts}",
    also=("ring", "ranks", "nodes", "gpus", "channels", "nccl"),
    between=", ",
)
RING_OF_RANKS = Entry("communicator_part.ranks", "a ring of {ranks} ranks")
RING_OF_NODES = Entry(
    "communicator_part.ranks_on_nodes", "a ring of {ranks} ranks on {nodes} nodes of {gpus} GPUs"
)
ONE_CHANNEL = Entry("communicator_part.one_channel", "1 channel")
CHANNELS = Entry("communicator_part.channels", "{channels} channels")
NCCL_RELEASES = Entry("communicator_part.nccl", "NCCL {releases}", between=" or ")
POINT_TO_POINT = Entry("communicator_part.point_to_point", "point-to-point sends")

RING_ORDER = Entry("communicator.ring_order", "{hops} -> 0", also=("hosts",), between=" -> ")
"""hosts: addresses of the nodes in the order of the ring; "": no mirrored link ends there."""
HOP = Entry("communicator_hop.is", "{node} {host}")
HOP_UNKNOWN = Entry("communicator_hop.address_unknown", "{node} ?")
HOPS_UNSEEN = Entry("communicator_hop.unseen", "({nodes} not seen)")

CARRIES = Entry(
    "communicator.carries",
    "{traffic}",
    also=("protocols", "collectives", "bytes", "per_iteration"),
)
"""traffic: one of the next two; protocols, collectives, bytes: lists of one length."""
TRAFFIC = Entry("communicator_traffic.captured", "{shares}")
TRAFFIC_EACH_ITERATION = Entry("communicator_traffic.each_iteration", "{shares}, in each iteration")
PROTOCOL_SHARE = Entry(
    "communicator_traffic.share", "{protocol} {collectives} collectives, {bytes:,} bytes"
)

ALGORITHM_USED = Entry(
    "communicator.algorithm_used", "{collectives} all-reduces: {sums}", also=("algorithm",)
)
SUMS_COME_WHOLE = Entry("communicator_sums.whole", "their sums come down whole")
"""Of trees, what is to be said of the sums of their all-reduces."""

SEES = Entry(
    "communicator.sees",
    "{way}: {carried}",
    also=("sender", "receiver", "channel", "queue_pairs", "protocols", "messages", "bytes"),
)
"""way and carried: one of the next three each; pairs: numbers of queue pairs in hexadecimal."""
WAY = Entry(
    "communicator_way.channel",
    "{sender} -> {receiver}, channel {channel}, QP {pairs}",
    between="/",
)
WAY_CHANNEL_UNKNOWN = Entry(
    "communicator_way.channel_unknown",
    "{sender} -> {receiver}, channel ?, QP {pairs}",
    between="/",
)
WAY_POINT_TO_POINT = Entry(
    "communicator_way.point_to_point", "{source} -> {destination}, QP {pairs}", between="/"
)
CARRIED = Entry("communicator_carried.protocols", "{protocols}", between="/")
CARRIED_COUNTED = Entry(
    "communicator_carried.counted",
    "{protocols}, {messages:,} messages, {bytes:,} bytes",
    between="/",
)
NOTHING_READ = Entry("communicator_carried.nothing_read", "nothing read")

COVERS = Entry(
    "communicator.covers",
    "of a sum of {bytes:,} bytes the mirrored links ({links}) {carry}",
    also=("once_bytes", "twice_bytes", "missing_chunks", "weights"),
)
"""links: their names, "0 -> 1"; once_bytes: on one mirrored link or more; twice_bytes: on two or
more."""
CARRY_ALL_ONCE = Entry(
    "communicator_carry.all_once", "carry everything, each byte in one copy only"
)
CARRY_ALL_PART_ONCE = Entry(
    "communicator_carry.all_part_once", "carry everything, {percent:g} % of it in one copy only"
)
CARRY_ALL_TWICE = Entry(
    "communicator_carry.all_twice", "carry everything, each byte in two copies or more"
)
CARRY_NOT = Entry("communicator_carry.not", "do not carry {chunks}, {percent:g} %")
CARRY_NOT_SOMEWHERE = Entry(
    "communicator_carry.not_on_some_channels",
    "do not carry {chunks} on some channels, {percent:g} %",
)
ONE_CHUNK = Entry("communicator_carry.one_chunk", "chunk {chunk} of {ranks}")
CHUNKS = Entry("communicator_carry.chunks", "chunks {chunks} of {ranks}")
NO_WEIGHTS = Entry(
    "communicator_carry.no_weights",
    "a broadcast from rank 0 (the initial weights) passes none of these links",
)

MORE = Entry(
    "communicator.more",
    "{named}: {gain}",
    also=("links", "adds_bytes", "twice_bytes"),
    between=" or ",
)
"""What mirroring one more of these links would add; links: numbers of their sending nodes."""
LINK = Entry("communicator_link.is", "{sender} -> {receiver}")
LINK_AT_PORTS = Entry(
    "communicator_link.at_ports", "{sender} -> {receiver} ({ports})", between=", "
)
OUT_OF_HOST = Entry("communicator_link.out_of", "out of {host}")
INTO_HOST = Entry("communicator_link.into", "into {host}")
OTHER_LINKS = Entry("communicator_link.others", "{links} others")
GAIN = Entry("communicator_gain.is", "{parts}", between=", ")
"""parts: of those below."""
GAIN_PART = Entry("communicator_gain.part", "{percent:g} % more")
GAIN_REST = Entry("communicator_gain.rest", "{percent:g} % more and nothing is missing")
GAIN_NOTHING_MISSING = Entry("communicator_gain.none_of_missing", "nothing that is missing")
GAIN_ALL_TWICE = Entry(
    "communicator_gain.all_twice", "everything is seen twice, so that any one link may fail"
)
GAIN_PART_TWICE = Entry("communicator_gain.part_twice", "{percent:g} % is seen twice")
GAIN_NOTHING = Entry("communicator_gain.nothing", "nothing")
