"""Connections: their channels, the numbers of their messages, and the ranks that write on them."""

from flowcheck.findings.finding import Entry

NCCL_LOG = (
    "Run rank 0 of the trainers with `NCCL_DEBUG=INFO` and give FlowCheck what it printed: "
    '`nccl_log = "rank0.log"` in the job file, or `flowcheck analyze FILE... --nccl-log rank0.log`.'
)

# Which connection carries which channel, where sizes do not tell.
EQUAL_SIZES = (
    "Several connections between two hosts always carried the same sizes, so that sizes do not "
    "tell which of them carries which channel."
)
CHANNELS_BY_NUMBER = Entry(
    "connections.channels_by_queue_pair_number",
    "connections carry channels in the order of their queue pair numbers",
    cause=EQUAL_SIZES,
)
CHANNELS_BY_BUFFERS = Entry(
    "connections.channels_by_buffers",
    "connections carry channels in the order of their buffers in memory",
    cause=EQUAL_SIZES,
)
CHANNELS_BY_USE = Entry(
    "connections.channels_by_first_use",
    "connections carry channels in the order in which they were first used",
    cause=EQUAL_SIZES,
)
CHANNELS_BY_GPU = Entry(
    "connections.channels_by_gpu",
    "channels take the NICs of a node by turns, in the order of the GPUs that write there",
    cause=EQUAL_SIZES,
)
TREES_BY_GPU = Entry(
    "connections.trees_by_gpu",
    "trees pass through the GPUs of a node by turns, in their order: on channel 0 through the "
    "lowest one that writes to another node, on the next channel through the next one",
    cause="Each NIC numbers its queue pairs by itself, and channels of equal sizes run over "
    "several NICs: no message tells which NIC has which of them.",
)
CHANNEL_ORDER_OPEN = Entry(
    "connections.channel_order_open",
    "which connection carries which channel is unknown: queue pair numbers, buffers and first use "
    "contradict each other",
    cause=EQUAL_SIZES,
)

# What numbers the messages of a connection.
NUMBERED_BY_GRANT = Entry("connections.numbered_by_clear_to_send", "clear-to-send index")
NUMBERED_BY_FLAG = Entry("connections.numbered_by_line_flag", "line flag")
NUMBERED_BY_PSN = Entry("connections.numbered_by_psn_count", "packet count from the start")
NUMBERED_BY_PROGRAM = Entry(
    "connections.numbered_by_program", "the packets of what the trainer sent in gaps"
)
NUMBERED_BY_SLOT = Entry("connections.numbered_by_buffer_slot", "buffer slot")
NUMBERS_CONTRADICTED = Entry(
    "connections.numbers_contradicted",
    "{evidence} contradicts the number of {contradicted} of {messages} messages",
)
GAPS_GUESSED = Entry(
    "connections.gaps_guessed",
    "{gaps} gaps in which the number of lost messages is uncertain",
    cause="The mirror lost messages, and nothing around the gap tells how many.",
)

# Which rank writes on a channel, in rings over nodes of several GPUs.
PLACES_BY_LOG = Entry(
    "connections.places_by_nccl_log",
    "ranks stand in the ring where NCCL's log has them, and clear-to-send messages name the ranks "
    "that write to another node there",
)
WRITER_BY_LOG = Entry(
    "connections.writer_by_nccl_log",
    "NCCL's log and the rank that clear-to-send messages name tell which rank writes on channel "
    "{channel}: sizes fit other ranks as well",
)
WRITER_BY_NODES = Entry(
    "connections.writer_by_equal_nodes",
    "the ring passes through the {gpus} GPUs of every node in the same order, and ranks are "
    "numbered node by node: the ranks that clear-to-send messages name then tell which rank writes "
    "on channel {channel}",
)
WRITER_AS_COPY = Entry(
    "connections.writer_as_copied_channel",
    "channel {channel} passes through the GPUs of a node as channel {like} does: NCCL makes copies "
    "of channels, and both leave every node by the same GPU",
)
FIRST_GPU_OPEN = Entry(
    "connections.first_gpu_open",
    "which GPU of a node comes first on channel {channels} is unknown: all chunks of every "
    "all-reduce on it have one size on the wire; NCCL's log of rank 0 shows it (nccl_log in the "
    "job file, or analyze --nccl-log)",
    remedy=NCCL_LOG,
)
HEAD_CHANNELS_OPEN = Entry(
    "connections.head_channels_open",
    "which channel each connection of an NVLS tree has is unknown: the ring's connections are "
    "among them, and not all of these were used, or queue pair numbers contradict each other",
    cause="All channels send messages of the same sizes, and the start-up was too small to use all "
    "of the ring's channels.",
    remedy="Set `NCCL_ALGO=^NVLSTree` for the trainers (`NCCL_NVLS_ENABLE=0` up to NCCL 2.23), so "
    "that NCCL uses trees and rings instead.",
)
RING_PLACE_OPEN = Entry(
    "connections.ring_place_open",
    "where in the ring a mirrored rank stands on channel {channels} is unknown: all chunks of "
    "every all-reduce on it have one size on the wire; NCCL's log of rank 0 shows it (nccl_log "
    "in the job file, or analyze --nccl-log)",
    remedy=NCCL_LOG,
)
NODES_OPEN = Entry(
    "connections.nodes_open",
    "how many GPUs each node has is unknown, and with it which rank writes on a connection: sizes "
    "fit several numbers; clear-to-send messages of both directions name the ranks that tell it, "
    "NCCL's log does not",
    remedy="Mirror both directions of the port.",
)
SENDERS_OPEN = Entry(
    "connections.senders_open",
    "the ring index of the senders is unknown: sizes fit another one as well; NCCL's log of rank "
    "0 shows it (nccl_log in the job file, or analyze --nccl-log)",
    remedy=NCCL_LOG,
)

# All-reduces by NCCL's trees.
TREES_OPEN = Entry(
    "connections.trees_open",
    "which of NCCL's two trees each channel uses is unknown: NCCL's search may have found "
    "{channels} channels, or {others}",
)
TREE_CONNECTIONS_OPEN = Entry(
    "connections.tree_connections_open",
    "which connections between two nodes belong to the ring, and which to trees, is unknown",
)

MIXED = Entry(
    "connections.communicators_mixed",
    "another communicator sends the same sizes between the same addresses, and nothing seen so far "
    "tells which connections belong together: their timing allows them to be mixed up",
    cause="Jobs whose ranks are parallel in other ways too reduce tensors of one size in step.",
    remedy="State `hosts` for each `[[job]]`, or mirror ports that only one of them uses.",
)
