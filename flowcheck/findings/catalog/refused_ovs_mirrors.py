"""Mirrors that `flowcheck switch apply` does not make in Open vSwitch, and why."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_TUNNEL_IN_OVS = Entry(
    "ovs_mirror.no_tunnel",
    "apply makes no tunnels in Open vSwitch",
    remedy="Print the commands, and paste them: `flowcheck switch render --os openvswitch "
    "--source PORT --monitor PORT`.",
)

# Ports and the bridge.
NO_SUCH_BRIDGE = Entry(
    "ovs_mirror.no_such_bridge",
    "this Open vSwitch has no such bridge; it has {bridges}",
    cause="The name is misspelt, or the bridge is on another machine.",
    remedy="Give one of those.",
)
NO_BRIDGE_AT_ALL = Entry(
    "ovs_mirror.no_bridge_at_all",
    "this Open vSwitch has no bridge",
    cause="Open vSwitch switches nothing on this machine.",
    remedy="Run the command on the machine that has the bridge.",
)
NO_SUCH_OVS_PORT = Entry(
    "ovs_mirror.no_such_port",
    "this Open vSwitch has no such port",
    remedy="`ovs-vsctl show` lists its ports.",
)
PORT_ON_OTHER_BRIDGE = Entry(
    "ovs_mirror.port_on_other_bridge",
    "is on {other}: all ports of a mirror must be on its bridge, {bridge}",
    remedy="Give ports of one bridge, and each bridge a mirror of its own.",
)
PORT_ON_NO_BRIDGE = Entry(
    "ovs_mirror.port_on_no_bridge",
    "is on no bridge: all ports of a mirror must be on its bridge, {bridge}",
    remedy="`ovs-vsctl show` lists the bridges with their ports; give one of {bridge}.",
)
BOND = Entry(
    "ovs_mirror.bond",
    "is a bond, which apply cannot mirror",
    remedy="Print the commands, and paste them: `flowcheck switch render --os openvswitch "
    "--source PORT --monitor PORT`.",
)
PATCH_PORT = Entry(
    "ovs_mirror.patch_port",
    "is a patch port, which only connects two bridges",
    remedy="Give the port the server is connected to.",
)

# The monitor port.
MONITOR_CUTS_TAGS = Entry(
    "ovs_mirror.monitor_cuts_tags",
    "has {column}={value}: copies would lose their VLAN tags",
    remedy="Clear its columns tag and vlan_mode, or give another port.",
)
MONITOR_INTERNAL = Entry(
    "ovs_mirror.monitor_internal",
    "is the host's own port (type internal)",
    remedy="Give the port that the capture card is connected to.",
)
MONITOR_IN_PATH = Entry(
    "ovs_mirror.monitor_in_path",
    "{addresses} is reached through it and would be cut off, as the output of a mirror "
    "carries copies only",
    also=("bridge",),
    remedy="Give another port. If this address is the capture card's, stop it from sending and "
    "run `ovs-appctl fdb/flush {bridge!q}`.",
)

# Mirrors that are there already.
OVS_NAME_TAKEN = Entry(
    "ovs_mirror.name_taken",
    "{bridge} has a mirror of this name that FlowCheck did not make "
    "(external_ids:flowcheck is not {name})",
    remedy="Give another name, or have its owner remove it.",
)
OVS_OUTPUT_TAKEN = Entry(
    "ovs_mirror.output_taken",
    "is the output of mirror {mirror}, {maker}, already",
    remedy="Give another port.",
)
OVS_MONITOR_WATCHED = Entry(
    "ovs_mirror.monitor_watched",
    "mirror {mirror}, {maker}, watches it: copies would be copied again",
    remedy="Give another port.",
)
OVS_SOURCE_IS_OUTPUT = Entry(
    "ovs_mirror.source_is_output",
    "is the output of mirror {mirror}: its copies would be copied again",
    remedy="Leave this port out.",
)
MADE_BY_SESSION = Entry("ovs_mirror.made_by_session", "made by FlowCheck's session {session}")
MADE_BY_OTHERS = Entry("ovs_mirror.made_by_others", "not made by FlowCheck")
