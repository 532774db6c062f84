"""Layouts that `flowcheck ports` refuses, and layouts whose rings no choice of ports covers."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Values of the layout file.
ONE_OF = Entry(
    "layout.one_of",
    "not a known value",
    also=("choices",),
    remedy="State one of: {choices}.",
)
AT_MOST = Entry(
    "layout.at_most",
    "must be at most {most:,}",
    remedy="Correct the number.",
)
WITHIN = Entry(
    "layout.within",
    "must be {least} to {most}",
    remedy="Correct the number.",
)
SPEED = Entry(
    "layout.speed",
    "must be above 0, and at most {most:g}",
    remedy="State the port's speed in Gb/s.",
)
TOO_MANY_RANKS = Entry(
    "layout.too_many_ranks",
    "at most {most:,} ranks (nodes * gpus) are supported",
    remedy="Describe the nodes of one data-parallel group.",
)
EXPERTS = Entry(
    "layout.experts",
    "must be 1: experts' gradients go by rings of their own, which are not supported",
    remedy="Leave it out. Of a job with experts only the rings of its other parameters can be "
    "planned.",
)
INDIVISIBLE = Entry(
    "layout.indivisible",
    "tp * cp * pp = {product} does not divide the {ranks} ranks",
    cause="Groups of tp * cp * pp ranks must fill the cluster.",
    remedy="Correct `tp`, `cp`, `pp`, `nodes` or `gpus` in the layout file.",
)
ORDER_OF_SIZES = Entry(
    "layout.order_of_sizes",
    "must name each of {sizes} once, joined by -",
    remedy="Write it as the trainer's launcher has it.",
)
NCCL_RELEASE = Entry(
    "layout.nccl_release",
    "not a release of NCCL",
    remedy='State it as "2.21" or "2.21.5", as the trainers print it.',
)
ALGORITHM_REFUSED = Entry(
    "layout.algorithm_refused",
    "{why}",
    remedy="Have NCCL use rings: NCCL_ALGO=Ring for the trainers.",
)
"""why: the finding that says why the algorithm is not followed."""
NODE_NUMBERS = Entry(
    "layout.node_numbers",
    "must be numbers of nodes, 0 to {last}, for example 0-3,8",
    remedy="Correct the list of nodes; they are counted from 0.",
)
NODE_TWICE = Entry(
    "layout.node_twice",
    "names a node twice",
    remedy="Name each node once.",
)
ONE_RANGE = Entry(
    "layout.one_range",
    "must have one range, of 1 to {most} ports, for example Ethernet{{1-16}}/1",
    remedy="Write the ports as one such range, or several tables.",
)
PARAMETERS_OR_JOB = Entry(
    "layout.parameters_or_job",
    "both parameters and job are stated",
    remedy="State only one of them.",
)
IS_JOB_FILE = Entry(
    "layout.is_job_file",
    "is a job file (it has {tables}), and this command reads a layout file: switches, cables and "
    "monitor ports",
    cause="A job file tells how a chain runs, a layout file how the cluster is cabled.",
    remedy="Write a layout file ([Choosing ports](../ops/mirror_ports/README.md) has an example), "
    "and name the job file in its `[traffic] job`.",
)
NO_CABLES = Entry(
    "layout.no_cables",
    "no [[cable]] table says where the NICs are plugged in",
    remedy="State at least one: the ports of a switch, with the nodes behind them (`flowcheck "
    "ports --help` names a page with an example).",
)
NO_MONITORS = Entry(
    "layout.no_monitors",
    "no [[monitor]] table says where copies may go",
    remedy="State at least one: a port of a switch, and the machine behind it.",
)
SWITCH_TWICE = Entry(
    "layout.switch_twice",
    "two [[switch]] tables have this name",
    remedy="Keep one of them.",
)
NO_CABLE_ENDS_THERE = Entry(
    "layout.no_cable_ends_there",
    "no cable ends there; cables end at {switches}",
    cause="The layout file has a monitor at a switch that no cable leads to.",
    remedy="Correct the switch's name in `[[monitor]]` or in `[[cable]]`.",
)
PORT_OR_ERSPAN = Entry(
    "layout.port_or_erspan",
    "neither port nor erspan is stated, or both",
    remedy="State one of them: the port that sends the copies, or the tunnel.",
)
MONITOR_TWICE = Entry(
    "layout.monitor_twice",
    "two [[monitor]] tables of {switch} state it",
    remedy="Keep one of them.",
)
PORTS_FOR_NODES = Entry(
    "layout.ports_for_nodes",
    "names {ports} ports for {nodes} nodes",
    remedy="Name one port for each node.",
)
HOSTS_FOR_PORTS = Entry(
    "layout.hosts_for_ports",
    "names {hosts} servers at {ports} ports",
    remedy="Name one server for each port.",
)
IP_ADDRESS = Entry(
    "layout.ip_address",
    "not an IP address",
    remedy="Write it as in 10.0.0.1 or fd00::1.",
)

# Files.
TOO_LARGE = Entry(
    "layout.too_large",
    "is larger than {bytes:,} bytes",
    remedy="Name the layout file.",
)
LOG_TOO_LARGE = Entry(
    "layout.log_too_large",
    "is larger than {bytes:,} bytes",
    remedy="Give only its beginning, which has the rings: `head -c 50M LOG > NEW`.",
)
UNREADABLE = Entry(
    "layout.unreadable",
    "cannot be read: {error}",
    remedy="Check the path and its permissions (`ls -l`).",
)
NOT_TOML = Entry(
    "layout.not_toml",
    "is not valid TOML: {error}",
    remedy="Correct the file there.",
)

# Cables.
PORT_TAKEN = Entry(
    "layout.port_taken",
    "this port of {switch} is stated for {nic} too",
    remedy="State each port once.",
)
GPU_OF_TWO_NICS = Entry(
    "layout.gpu_of_two_nics",
    "GPU {gpu} of node {node} is stated for NIC {nic} too",
    remedy="State one NIC for each GPU.",
)
MONITOR_CABLED = Entry(
    "layout.monitor_cabled",
    "is cabled to {nic}",
    remedy="Give another port, or correct the `[[cable]]` table.",
)
NODE_WITHOUT_CABLE = Entry(
    "layout.node_without_cable",
    "has no [[cable]], so its rings cannot leave the node",
    remedy="State one: where each of its NICs is plugged in.",
)
NIC_WITHOUT_CABLE = Entry(
    "layout.nic_without_cable",
    "GPU {gpu} uses NIC {nic}, which has no cable on node {node}",
    remedy="State the cable, or change `gpus`.",
)

# Data-parallel groups and their rings.
GROUP_OF_ONE = Entry(
    "layout.group_of_one",
    "this data-parallel group has one rank, so no gradient is summed",
    remedy="Check nodes, gpus, tp, cp and pp.",
)
GROUP_IN_ONE_NODE = Entry(
    "layout.group_in_one_node",
    "its {ranks} ranks are all on node {node}: NVLink sums their gradients, and its "
    "rings cross no switch",
    remedy="Check gpus, tp, cp, pp and order: only a group that spans nodes can be followed.",
)
GROUP_UNEVEN = Entry(
    "layout.group_uneven",
    "its nodes have different numbers of its ranks ({counts}), which is not supported",
    remedy="Check tp, cp, pp and order.",
)
LOGS_FOR_GROUPS = Entry(
    "layout.logs_for_groups",
    "the number of logs must be one, or one for each of the {groups} groups",
    remedy="Give one log for all {groups} groups, or one for each.",
)
LOG_OF_OTHER_RANKS = Entry(
    "layout.log_of_other_ranks",
    "the log has rings of {logged} ranks, but the group has {ranks}",
    remedy="Give the log of this group.",
)
LOG_AMBIGUOUS = Entry(
    "layout.log_ambiguous",
    "the log has {orders} different orders of {ranks} ranks, and does not say which is "
    "the data-parallel group's",
    remedy="Keep only the lines of that group in the file.",
)
LOG_CHANNELS = Entry(
    "layout.log_channels",
    "NCCL's log has {channels} channels of {group}",
    remedy="State that number, or leave `channels` out.",
)
LEAVES_NODE_TWICE = Entry(
    "layout.leaves_node_twice",
    "this channel's ring of group {group} leaves a node twice, which is not supported",
    cause="NCCL's ring goes out of one node by two NICs, as the log or the graph says.",
    remedy="Check that the log or graph is of this job; else mirror all ports of that node.",
)
ALGORITHM_RANKS = Entry(
    "layout.algorithm_ranks",
    "{algorithm} are supported from {least} to {most} ranks, on {nodes} nodes or more, "
    "but group {group} has {ranks} ranks on {own} nodes",
    remedy="Have NCCL use rings: NCCL_ALGO=Ring for the trainers.",
)
ALGORITHM_LEAST_RANKS = Entry(
    "layout.algorithm_least_ranks",
    "{algorithm} are supported from {least} ranks on {nodes} nodes or more, but group "
    "{group} has {ranks} ranks on {own} nodes",
    remedy="Have NCCL use rings: NCCL_ALGO=Ring for the trainers.",
)
ALGORITHM_LEAST_GPUS = Entry(
    "layout.algorithm_least_gpus",
    "{algorithm} sum over {least} GPUs of a node or more, but group {group} has {own} on each",
    remedy="Have NCCL use rings: NCCL_ALGO=Ring for the trainers.",
)
ALGORITHM_NICS = Entry(
    "layout.algorithm_nics",
    "group {group} uses several NICs of node {node}, and {algorithm} over several NICs are "
    "followed on {most} nodes at most, but it has {own}",
    remedy="Have NCCL use rings: NCCL_ALGO=Ring for the trainers.",
)

# Dumps of NCCL.
NOT_A_DUMP = Entry(
    "layout.not_a_dump",
    "is not a dump of NCCL: its first element is neither graphs nor system",
    remedy="Name what NCCL wrote with NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE.",
)
NOT_XML = Entry(
    "layout.not_xml",
    "is not XML: {error}",
    remedy="Name what NCCL wrote with NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE, unchanged.",
)
NO_RING_CHANNEL = Entry(
    "layout.no_ring_channel",
    'has no channel of the ring graph (graph id="0")',
    remedy="Dump it in a job whose NCCL uses rings: NCCL_ALGO=Ring.",
)
CHANNELS_OF_OTHER_GPUS = Entry(
    "layout.channels_of_other_gpus",
    "its channels have different GPUs, which is not supported",
    remedy="Name the dump of a job whose channels all use the same GPUs.",
)
DUMP_OF_ONE_NODE = Entry(
    "layout.dump_of_one_node",
    "has a channel without two nets: a job on one node wrote it",
    remedy="Dump it in a job on several nodes.",
)
DUMP_WITHOUT_NETWORK = Entry(
    "layout.dump_without_network",
    "names no GPU or no net: it was written without a network",
    remedy="Dump it in a job on several nodes.",
)
DUMP_TOO_DEEP = Entry(
    "layout.dump_too_deep",
    "has more elements than NCCL writes: it is not a dump of NCCL",
    remedy="Name what NCCL wrote with NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE, unchanged.",
)
DUMP_HAS_DOCTYPE = Entry(
    "layout.dump_has_doctype",
    "has a document type, which NCCL never writes: entities are refused",
    remedy="Name what NCCL wrote with NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE, unchanged.",
)
DUMP_NUMBER = Entry(
    "layout.dump_number",
    "{key} = {text} is not a number of 0 or more",
    remedy="Name what NCCL wrote with NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE, unchanged.",
)

# Monitors.
TUNNELS_MEET = Entry(
    "layout.tunnels_meet",
    "monitor[{other}] ends at {address} too, so their copies would share its port",
    remedy="Give each monitor the address of its own port.",
)
SESSION_NUMBER = Entry(
    "layout.session_number",
    "{platform} numbers its sessions, and no number is stated",
    remedy="State a free number: a session in use would be changed.",
)
SESSION_TWICE = Entry(
    "layout.session_twice",
    "monitor[{other}] has this session too, and {monitor} and {port} would become one session",
    remedy="Give each monitor its own session.",
)

# --mirrors.
MIRRORS_NEED_MACHINE = Entry(
    "layout.mirrors_need_machine",
    "copies go to several machines ({machines}), each needs a file",
    remedy="Put `{{machine}}` into the file's name: each machine's name takes its place.",
)
MACHINE_IN_FILE_NAME = Entry(
    "layout.machine_in_file_name",
    "cannot be part of a file's name",
    remedy="Name the machine with printable characters and without `/`.",
)
MIRRORS_FILE_TAKEN = Entry(
    "layout.mirrors_file_taken",
    "this file exists and holds something else",
    remedy="Name another file.",
)
NO_HOST = Entry(
    "layout.no_host",
    "the address of the server behind this port of {switch} is not stated",
    remedy='Give the addresses in the order of the ports, for example `hosts = "10.0.0.{{1-16}}"`.',
)

# No choice covers the rings.
NO_CHUNK_SEEN = Entry("layout.no_chunk_seen", "none of its {chunks} chunks")
CHUNKS_UNSEEN = Entry("layout.chunks_unseen", "all of it except chunks {chunks}")
MORE_CHUNKS_UNSEEN = Entry(
    "layout.more_chunks_unseen", "all of it except chunks {chunks} and {more} more"
)
ADD_MONITORS = Entry("layout.add_monitors", "{count} at {switch}")
ADD_MONITORS_BESIDE = Entry(
    "layout.add_monitors_beside", "{count} more at {switch}, which has {own}"
)
ADD_MONITORS_THERE = Entry("layout.add_monitors_there", "more at these switches")
RING_UNCOVERED = Entry(
    "layout.ring_uncovered",
    "cannot be covered at one machine, which must see all of group {group} on {ports}. "
    "The best is {machine}, which sees {seen} of the group's {rings} rings, and of this "
    "one {part}. Its links end at {switches}; monitors there: {monitors}",
    also=("add",),
    remedy='State `[[monitor]]` tables with machine = "{machine}": {add}.',
)
MONITORS_AT = Entry("layout.monitors_at", "{switch} has {count}")
LESS_REDUNDANCY = Entry(
    "layout.less_redundancy",
    "group {group} needs each chunk on {wanted} monitor ports of {machine}: {has}",
    also=("uncovered", "redundancy", "add"),
    between=", ",
    remedy='State more `[[monitor]]` tables with machine = "{machine}": {add}; or lower '
    "`--redundancy` to {redundancy}.",
)
SEARCH_ENDED = Entry(
    "layout.search_ended",
    "no choice was found in {steps:,} steps or {seconds:g} s",
    also=("switches",),
    remedy="State more monitors at {switches}, or fewer rings or nodes.",
)
PORTS_NEEDED = Entry(
    "layout.ports_needed",
    "{count} mirrored directions are needed, {sum} = {gbps:g} Gb/s; the monitor ports at their "
    "switches are {monitors}",
    cause="The monitor ports are too few or too slow for the copies.",
    remedy="State more or faster monitor ports, or put them at those switches.",
)
TUNNEL_ROOM = Entry(
    "layout.tunnel_room", "{monitor} {gbps:g} Gb/s ({inner} without the tunnel's headers)"
)
MONITOR_ROOM = Entry("layout.monitor_room", "{monitor} {gbps:g} Gb/s")
NO_SHARING_FOUND = Entry(
    "layout.no_sharing_found",
    "no way to share them was found (the search ends after {seconds:g} s)",
)
MONITORS_TOO_SMALL = Entry(
    "layout.monitors_too_small",
    "{reasons}",
    remedy="State more or faster monitor ports.",
)
