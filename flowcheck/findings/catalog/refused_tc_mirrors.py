"""Mirrors that `flowcheck switch apply` does not make with Linux tc, and why."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_TUNNEL_IN_TC = Entry(
    "tc_mirror.no_tunnel",
    "apply makes no tunnels with tc",
    remedy="Print the commands, and paste them: `flowcheck switch render --os tc --source PORT "
    "--monitor PORT`.",
)
NO_SUCH_DEVICE = Entry(
    "tc_mirror.no_such_device",
    "this network namespace has no such device",
    remedy="`ip link` lists those it has.",
)

# The monitor port.
MONITOR_HAS_MASTER = Entry(
    "tc_mirror.monitor_has_master",
    "belongs to {master}, which would forward copies or send them back",
    remedy="Give a device of its own.",
)
MONITOR_HAS_ADDRESS = Entry(
    "tc_mirror.monitor_has_address",
    "has an address ({addresses}), so it is in use",
    remedy="Give a device without one.",
)
MONITOR_DOWN = Entry(
    "tc_mirror.monitor_down",
    "is down, copies would be dropped",
    also=("device",),
    remedy="`ip link set {device!q} up`.",
)
MONITOR_IN_USE = Entry(
    "tc_mirror.monitor_in_use",
    "received {received} and sent {sent} frames in {seconds:g} s, and FlowCheck has no "
    "mirror there: it carries other traffic, which copies would mix with",
    remedy="Give another device; if the capture card is what sends, stop it from sending.",
)
MONITOR_MTU_TOO_SMALL = Entry(
    "tc_mirror.monitor_mtu_too_small",
    "its MTU of {mtu} bytes is below the {source_mtu} of {source}: larger copies would "
    "be dropped silently",
    also=("device",),
    remedy="`ip link set {device!q} mtu {source_mtu}`.",
)

# Sources.
SHARED_BLOCK = Entry(
    "tc_mirror.shared_block",
    "its filters are in a block that it shares with other devices: the frames of all of them would "
    "be copied",
    remedy="Mirror at the switch, or have the owner of the block give this device filters of its "
    "own.",
)
INGRESS_QDISC = Entry(
    "tc_mirror.ingress_qdisc",
    "it has a qdisc `ingress` that FlowCheck did not make, and a device with it has no "
    "egress filters",
    remedy="Mirror rx only, or have its owner replace it by clsact.",
)
HIDDEN_BY_FILTER = Entry(
    "tc_mirror.hidden_by_filter",
    "{device} {way} has a filter at pref {pref} that decides on frames before "
    "FlowCheck's could see them",
    remedy="Have its owner give it a higher pref.",
)

# Filters that are there already.
TC_MONITOR_WATCHED = Entry(
    "tc_mirror.monitor_watched",
    "a filter {maker} watches it: copies would be copied again",
    remedy="Give another device.",
)
TC_SOURCE_GETS_COPIES = Entry(
    "tc_mirror.source_gets_copies",
    "a filter {maker} on {device} {way} copies to it: its copies would be copied again",
    remedy="Leave this device out.",
)
TC_MONITOR_TAKEN = Entry(
    "tc_mirror.monitor_taken",
    "a filter {maker} on {device} {way} sends frames to it already, which copies would mix with",
    remedy="Give another device.",
)
TC_COPIED_ALREADY = Entry(
    "tc_mirror.copied_already",
    "a filter {maker} copies {device} {way} to it already: each frame would come twice",
    remedy="Give another device, or have that filter removed.",
)
FILTER_OF_SESSION = Entry(
    "tc_mirror.filter_of_session", "of FlowCheck's session {session} (pref {pref})"
)
FILTER_OF_OTHERS = Entry("tc_mirror.filter_of_others", "that FlowCheck did not make (pref {pref})")
