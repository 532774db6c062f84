"""`flowcheck fleet plan`: what its figures rest on, and what it refuses."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

PARTS_AND_NODES = Entry(
    "fleet_plan.parts_and_nodes",
    "each part of a shard needs a node of its own, which takes {parts} nodes at least",
    remedy="State more nodes, or fewer copies.",
)
GROUPS_DIVIDE = Entry(
    "fleet_plan.groups_divide",
    "groups of {parts} do not divide it",
    remedy="Choose the strategy `mixed`, or another number of nodes or copies.",
)
JUMP_DIVIDES = Entry(
    "fleet_plan.jump_divides",
    "must be a multiple of {block}, which is the jump, {jump}, times {parts} parts of a shard",
    remedy="Choose another jump, number of nodes or copies; the strategy `mixed` takes any.",
)
JUMP_OF_OTHER = Entry(
    "fleet_plan.jump_of_other",
    "belongs to the strategy `jump`, and the strategy is {strategy}",
    remedy="Leave it out, or choose `jump`.",
)
CODE_OR_COPIES = Entry(
    "fleet_plan.code_or_copies",
    "copies are chosen and an erasure code too",
    remedy="Give one of them.",
)
CODE_WHOLE = Entry(
    "fleet_plan.code_whole",
    "an erasure code has data blocks and parity blocks, and one of the numbers is missing",
    remedy="Give both, or leave both out for copies.",
)
NODES_TWICE = Entry(
    "fleet_plan.nodes_twice",
    "the file lists the nodes, or states their number, and so does the command line",
    remedy="Give one of them.",
)
NO_NODES = Entry(
    "fleet_plan.no_nodes",
    "nothing says which nodes there are",
    remedy="Give `--nodes N`, or a file that lists them.",
)
NODE_TWICE = Entry(
    "fleet_plan.node_twice",
    "two nodes have this name",
    remedy="Give each node a name of its own.",
)
FILE_TOO_LARGE = Entry(
    "fleet_plan.file_too_large",
    "is larger than {bytes:,} bytes",
    remedy="Name the file with the nodes.",
)
NO_NAME = Entry(
    "fleet_plan.no_name",
    "must have a visible character",
    remedy="Name each node, and leave out domains that are not known.",
)
DOMAIN_MISSING = Entry(
    "fleet_plan.domain_missing",
    "is not stated for this node; nodes that state it: {others}",
    remedy="State it for each node, or for none.",
)
TOO_MANY_STATES = Entry(
    "fleet_plan.too_many_states",
    "so many shards overlap that more than {most:,} cases would have to be kept apart to count "
    "exactly",
    remedy="Choose `group`, or fewer parts of each shard.",
)
DOMAIN_UNAVOIDABLE = Entry(
    "fleet_plan.domain_unavoidable",
    "{kind} {largest} has {nodes:,} of the nodes, and {room:,} are the most with which no shard "
    "has two of its {parts} parts in one {kind}",
)
DOMAIN_SHARED = Entry(
    "fleet_plan.domain_shared",
    "no placement was found that keeps all parts of each shard in several of the domains of kind "
    "{kind}; whether there is one was not decided",
)
DOMAIN_OF_JUMP = Entry(
    "fleet_plan.domain_of_jump",
    "the strategy `jump` keeps the order of the nodes, in which {shards:,} shards have several "
    "parts in one {kind}",
    remedy="Choose another `replication_jump`, or the strategy `group`.",
)
LOST_TOGETHER = Entry(
    "fleet_plan.lost_together",
    "each set of so many nodes is lost as likely as another; nodes of one rack, one power feed or "
    "one switch are lost together more often, which the lines about domains answer",
)
NODE_MAKES_SHARD = Entry(
    "fleet_plan.node_makes_shard",
    "each node makes one shard of the job and holds a part of it",
)
