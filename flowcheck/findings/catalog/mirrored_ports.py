"""Choosing the ports to mirror: what the choice rests on, and what to know about it."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# How rings pass through the nodes.
ORDER_BY_RANK = Entry(
    "ports.order_by_rank",
    "order: rings pass through the nodes in the order of their ranks",
    remedy="Run rank 0 with `NCCL_DEBUG=INFO` and give what it printed: `--nccl-log FILE`.",
)
ORDER_AS_LOGGED_GROUP = Entry(
    "ports.order_as_logged_group",
    "order: the rings of every group pass through the nodes as those in the log, which shows one "
    "group",
    remedy="Give one `--nccl-log` for each data-parallel group.",
)
ORDER_CUT_IN_LOG = Entry(
    "ports.order_cut_in_log",
    "order: NCCL's log shows only the first 20 ranks of a ring; the rest is taken in the order of "
    "ranks",
)
ORDER_INDIFFERENT = Entry(
    "ports.order_indifferent",
    "{assumption} (here the order does not matter: these ports show every chunk in any order)",
)

# Which NICs of a node a ring uses.
NICS_IN_TURN = Entry(
    "ports.nics_in_turn",
    "NICs: a ring enters and leaves a node by the same NIC, and channels use the NICs in turn "
    "(NCCL_CROSS_NIC=0)",
    remedy="Run the data-parallel group with `NCCL_GRAPH_DUMP_FILE` and give it: `--graph FILE`.",
)
NICS_AS_DUMPED_NODE = Entry(
    "ports.nics_as_dumped_node",
    "NICs: every node uses its NICs as the graph dump shows for one node",
)
GPUS_BY_NUMBER = Entry(
    "ports.gpus_by_number",
    "GPUs use NICs in the order of their numbers",
    remedy="Set `gpus` of each `[[cable]]`, or give `--graph` with NCCL's topology dump.",
)
GPU_AGAINST_DUMP = Entry(
    "ports.gpu_against_dump",
    "gpus: GPU {gpu} uses NIC {stated}, as the file states, but in NCCL's topology dump NIC "
    "{nearest} is the nearest",
    remedy="Check `gpus` in the file, or leave it out.",
)

# Notes.
SHARDED_TRAINING = Entry(
    "ports.sharded_training",
    "Sharded training ({sharding}): each link misses one rank's block of every gather of "
    "parameters, as it misses one chunk of a sum. Scattered sums never cross a link whole, so the "
    "replica holds parameters only.",
)
OTHER_TRAFFIC = Entry(
    "ports.other_traffic",
    "Other traffic on these ports is copied too: line rates include it, and means include what "
    "[traffic] other_gbps states ({gbps:g} Gb/s).",
)
ANY_ORDER = Entry(
    "ports.any_order",
    "Of each ring, ports in one direction, or both directions of one node, are mirrored: that "
    "shows every chunk in whatever order a ring passes through the nodes.",
)
SEVERAL_CABLES = Entry(
    "ports.several_cables",
    "A NIC with several cables spreads its traffic over them by a hash: all of its ports are "
    "mirrored together.",
)
MONITOR_TOO_SLOW = Entry(
    "ports.monitor_too_slow",
    "{sum} = {total:g} Gb/s, over {gbps:g} of {monitor}",
    cause="The copies of all chosen ports together are more than the monitor port carries.",
    remedy="State a faster monitor port, or more of them, in the layout file.",
)
