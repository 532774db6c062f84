"""NCCL: the forms of its transport that a stream was written in, the algorithms that are not
followed, what mirroring one takes, and what its log says of the rings."""

from flowcheck.findings.finding import Entry

_FROM_START = "Only the start-up of the trainers tells this, and it was not seen."

NO_WRITES = Entry(
    "transport.no_writes",
    "no RDMA write was seen: the trainers use another transport, or the mirror does not show it",
    remedy="Check that the trainers use NCCL over RoCE (`NCCL_DEBUG=INFO` prints `NET/IB`), and "
    "that the switch mirrors their ports.",
)
NO_WHOLE_WRITES = Entry(
    "transport.no_whole_writes",
    "RDMA writes came, and none of them is read yet",
    cause="The start-up has only begun, or the mirror shows parts of messages alone.",
    remedy="Wait for the first iteration. If this stays, `flowcheck doctor` tells what the mirror "
    "leaves out.",
)
NOT_NCCL = Entry(
    "transport.not_nccl",
    "{writes:,} RDMA writes were seen, but not in the form of NCCL's own transport (clear-to-send "
    "messages one way, writes that end with their size as immediate the other way): another "
    "library or plugin wrote them",
    cause="Another library or plugin moves the data (UCX, NVSHMEM, a vendor's plugin, storage).",
    remedy="Train with NCCL's own transport (`NCCL_NET=IB`), and leave other hosts out of the "
    "mirror.",
)

CLEAR_TO_SEND_LAYOUT = Entry(
    "transport.clear_to_send_layout", "clear-to-send entries have the layout of NCCL {releases}"
)
LITTLE_ENDIAN_SIZES = Entry(
    "transport.little_endian_sizes",
    "sizes in immediates have the sender's byte order, as before NCCL 2.29",
)
BIG_ENDIAN_SIZES = Entry(
    "transport.big_endian_sizes", "sizes in immediates are big-endian, as since NCCL 2.29"
)
ADAPTIVE_ROUTING = Entry(
    "transport.adaptive_routing",
    "{connections} connections end a write with an empty one that has its size "
    "(NCCL_IB_ADAPTIVE_ROUTING; writes of more than NCCL_IB_AR_THRESHOLD bytes)",
)
WRITES_IN_PIECES = Entry(
    "transport.writes_in_pieces",
    "{queue_pairs} queue pairs write each packet of a send by itself (the NIC's own adaptive "
    "routing); the empty write behind them has their size",
)
PIECES_NOT_FOLLOWED = Entry(
    "transport.pieces_not_followed",
    "the NIC writes each packet of a send by itself (its own adaptive routing): "
    "flowcheck analyze reads such captures, a chain does not follow such jobs",
    remedy="Set `NCCL_IB_ADAPTIVE_ROUTING=0` for the trainers, or turn adaptive routing off on "
    "their NICs.",
)
GROUPED_RECEIVES = Entry(
    "transport.grouped_receives", "receives are granted in groups of up to {receives} (PXN)"
)
REGISTERED_BUFFERS = Entry(
    "transport.registered_buffers",
    "{connections} connections carry some collectives straight to registered user buffers: "
    "these receives have exactly the size of what is sent",
)
SPEED_UPDATES = Entry(
    "transport.speed_updates",
    "receivers told {messages:,} times how fast their links are (NCCL_IB_EVENT_BASED_LB, since "
    "NCCL 2.31): these writes grant nothing",
)
WHOLE_MESSAGES_IN_TURN = Entry(
    "transport.whole_messages_in_turn",
    "connections of {queue_pairs} queue pairs send whole messages on them in turn",
)
MESSAGES_SPLIT = Entry(
    "transport.messages_split",
    "connections of {queue_pairs} queue pairs split every message over them",
)
MERGED_PORTS = Entry(
    "transport.merged_ports",
    "NCCL takes {ports} ports of a NIC for one and cuts every send over them: FlowCheck does not "
    "follow such connections",
    cause="NCCL merges the ports of a NIC by default, since 2.20.",
    remedy="Give each port to NCCL by itself: `NCCL_NET_MERGE_LEVEL=LOC` for the trainers, or "
    "`NCCL_IB_MERGE_NICS=0` before NCCL 2.24.",
)

# LL128 before NCCL 2.12: NCCL 2.10 changed the order in which its lines hold data.
STATE_RELEASE = (
    'State NCCL\'s release in the job file, as the trainers print it: `nccl = "2.9"` or '
    '`nccl = "2.10"`.'
)
LL128_ORDER_OPEN = Entry(
    "transport.ll128_order_open",
    "the order of data in LL128's lines is unknown: the release is from before NCCL 2.12, NCCL "
    "2.10 changed the order, and nothing seen shows which of the two it is",
    remedy=STATE_RELEASE,
)
LL128_ORDER_OPEN_MIDSTREAM = Entry(
    "transport.ll128_order_open_midstream",
    "the order of data in LL128's lines is unknown: the release is from before NCCL 2.12, and only "
    "the trainers' start-up tells the order, which was not seen",
    cause=_FROM_START,
    remedy="State NCCL's release: `nccl` in the job file; or start FlowCheck before the trainers.",
)
LL128_LINEAR_BY_CONTENT = Entry(
    "transport.ll128_linear_by_content",
    "LL128's lines hold data in sequence, as before NCCL 2.10: start-up messages make "
    "sense in this order, and not in the other one",
)
LL128_LINEAR_STATED = Entry(
    "transport.ll128_linear_stated",
    "LL128's lines hold data in sequence, as before NCCL 2.10: the job file states that release",
)
LL128_ORDER_ASSUMED = Entry(
    "transport.ll128_order_assumed",
    "LL128's lines hold data as since NCCL 2.10: no clear-to-send message was mirrored that "
    "would show the release, and nothing else seen shows it",
    remedy=STATE_RELEASE,
)

USE_RING = "Set `NCCL_ALGO=Ring` for the trainers, so that NCCL uses rings instead."

NVLS_NOT_FOLLOWED = Entry(
    "algorithm.nvls_not_followed",
    "NVLink SHARP is not followed: it sums inside a node and uses trees of its own between nodes",
    remedy=USE_RING,
)
COLLNET_NOT_FOLLOWED = Entry(
    "algorithm.collnet_not_followed",
    "CollNet is not followed: the switch itself sums (SHARP), and no port carries a ring's data",
    remedy=USE_RING,
)
PAT_NOT_FOLLOWED = Entry(
    "algorithm.pat_not_followed",
    "PAT is not followed: FlowCheck does not know its schedule of sends",
    remedy=USE_RING,
)
GATHERED_BY_PAT = Entry(
    "algorithm.gathered_by_pat",
    "all-gathers go by PAT, NCCL's parallel aggregated trees ({connections} connections to ranks "
    "1, 2, 4, ... away), and are not followed",
    remedy="Have NCCL gather by rings: `NCCL_PAT_ENABLE=0` for the trainers.",
)
TREES_MIRRORED = Entry(
    "algorithm.trees_mirrored_both_ways",
    "Trees: both directions of all ports of a node are mirrored, because following a tree needs "
    "them. Gb/s are counted as a ring's; an inner node of a tree sends about as much.",
)
NVLS_TREES_MIRRORED = Entry(
    "algorithm.nvls_trees_mirrored",
    "NVLS trees: each NIC of a node carries its own share of every tensor, so all ports of one "
    "node are mirrored, in both directions. Gb/s are counted as a ring's.",
)

NO_RINGS = Entry(
    "nccl_log.no_rings",
    "NCCL's log shows no ring: rank 0 prints them (lines such as \"NCCL INFO Channel 00/02 : 0 1 "
    '2 3"), where NCCL_DEBUG=INFO is set and NCCL_DEBUG_SUBSYS does not leave INIT out',
    remedy="Give the log of rank 0, of a run with `NCCL_DEBUG=INFO` and INIT in "
    "`NCCL_DEBUG_SUBSYS`.",
)
ANOTHER_JOB = Entry(
    "nccl_log.another_job",
    "NCCL's log has rings of {logged} ranks, and those seen have {seen}: it is of another job, "
    "and FlowCheck does not use it",
    remedy="Name this job's own log: `nccl_log` in the job file, or `analyze --nccl-log`.",
)
