"""Options of `flowcheck switch` that describe no possible mirror session."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Ports and the bridge.
DIRECTION_SUFFIX = Entry(
    "mirror_session.direction_suffix",
    "must end in :rx, :tx or :both, or have no suffix (rx)",
    remedy="Write it as PORT:both, PORT:tx or PORT.",
)
NOT_A_PORT_NAME = Entry(
    "mirror_session.not_a_port_name",
    "is not a port name of {platform}, which looks like {example}",
    cause="The name is of another switch system.",
    remedy="`flowcheck switch list` shows how ports are written for each `--os`.",
)
LEADING_ZERO = Entry(
    "mirror_session.leading_zero",
    "has a number with a leading zero",
    remedy="Write it without.",
)
BUNDLE_AS_MONITOR = Entry(
    "mirror_session.bundle_as_monitor",
    "a port channel can be mirrored, but cannot be the monitor port",
    remedy="Give a physical port.",
)
BRIDGE_NEEDED = Entry(
    "mirror_session.bridge_needed",
    "the bridge that has the ports is not known",
    remedy="State it with `--bridge`, for example br0.",
)
NOT_A_BRIDGE_NAME = Entry(
    "mirror_session.not_a_bridge_name",
    "must be a bridge's name, for example br0",
    remedy="`ovs-vsctl list-br` lists the bridges.",
)
NO_BRIDGES = Entry(
    "mirror_session.no_bridges",
    "{platform} has no bridges",
    remedy="Leave `--bridge` out.",
)
MONITOR_NEEDED = Entry(
    "mirror_session.monitor_needed",
    "the port that sends the copies is not stated",
    remedy="State it with `--monitor`.",
)
MONITOR_OR_ERSPAN_NEEDED = Entry(
    "mirror_session.monitor_or_erspan_needed",
    "the port that sends the copies is not stated",
    remedy="State it with `--monitor`, or a tunnel with `--erspan`.",
)
MONITOR_BESIDE_ERSPAN = Entry(
    "mirror_session.monitor_beside_erspan",
    "cannot be combined with --erspan: the copies take the tunnel's route",
    remedy="Leave one of the two out.",
)
MONITOR_WITH_ERSPAN = Entry(
    "mirror_session.monitor_with_erspan",
    "{platform} also needs the port by which the tunnel leaves",
    remedy="State it with `--monitor` too.",
)

# Sessions.
SESSION_NAME = Entry(
    "mirror_session.session_name",
    "must be a letter, then letters, digits, _ and -, at most 16",
    remedy="Correct the name, or leave the option out.",
)
SESSION_NUMBER = Entry(
    "mirror_session.session_number",
    "{platform} numbers its sessions",
    remedy="State a number that is not in use: a session that exists would be changed.",
)
SESSION_NUMBER_WITHIN = Entry(
    "mirror_session.session_number_within",
    "{platform} numbers its sessions",
    also=("least", "most"),
    remedy="State a number, {least} to {most}, that is not in use: a session that exists would "
    "be changed.",
)

# Tunnels.
TUNNEL_FORM = Entry(
    "mirror_session.tunnel_form",
    "must be src=ADDRESS,dst=ADDRESS, optionally with id=N, ttl=N, dscp=N",
    remedy="Write it as in `--erspan src=10.0.0.1,dst=10.0.0.2`.",
)
TUNNEL_NUMBER = Entry(
    "mirror_session.tunnel_number",
    "{key} must be a number from {least} to {most}",
    remedy="Correct the number, or leave it out.",
)
TUNNEL_ADDRESS = Entry(
    "mirror_session.tunnel_address",
    "{error}; src and dst must be IPv4 addresses",
    remedy="Correct the address.",
)
NOT_ONE_MACHINE = Entry(
    "mirror_session.not_one_machine",
    "{key} is {kind}",
    remedy="State the address of one machine.",
)
THIS_NETWORK = Entry("mirror_session.this_network", 'of "this network", 0.0.0.0/8')
LOOPBACK = Entry("mirror_session.loopback", "a loopback address")
MULTICAST = Entry("mirror_session.multicast", "a multicast address")
BROADCAST = Entry("mirror_session.broadcast", "the broadcast address")
RESERVED = Entry("mirror_session.reserved", "in the reserved 240.0.0.0/4")
SAME_ENDS = Entry(
    "mirror_session.same_ends",
    "src and dst are the same: src is the switch's address, dst the capture node's",
    remedy="Give the switch's own address as src and the capture node's as dst.",
)
NO_TUNNEL_KNOWN = Entry(
    "mirror_session.no_tunnel_known",
    "FlowCheck has no commands for a tunnel of {platform}",
    remedy="Use `--monitor`.",
)

# Other options.
ONE_OF = Entry(
    "mirror_session.one_of",
    "not a known value",
    also=("choices",),
    remedy="Give one of {choices}.",
)
DID_YOU_MEAN = Entry(
    "mirror_session.did_you_mean",
    "not a known value",
    also=("nearest", "choices"),
    remedy="Did you mean {nearest}? Known are {choices}.",
)
FORM_REFUSED = Entry(
    "mirror_session.form_refused",
    "{platform} has the forms {forms}",
    cause="This switch system does not have the form of mirroring that was asked for.",
    remedy="Ask for one of those; `flowcheck switch list` shows what each system has.",
)
NO_FORMS = Entry(
    "mirror_session.no_forms",
    "{platform} has no forms",
    remedy="Leave `--form` out.",
)
NOT_TOML = Entry(
    "mirror_session.not_toml",
    "is not valid TOML: {error}",
    remedy="Correct the file there.",
)

# Figures.
ABOVE_ZERO = Entry(
    "mirror_session.above_zero",
    "must be a finite number above 0",
    remedy="State the figure as `flowcheck switch check --help` describes it.",
)
FIGURES_TOGETHER = Entry(
    "mirror_session.figures_together",
    "one of --gradient-bytes, --members and --step-s says nothing without the others",
    remedy="Give all three, or none of them.",
)
RING_OF_ONE = Entry(
    "mirror_session.ring_of_one",
    "must be 2 or more: a ring has 2 members",
    remedy="State the number of ranks of the job's ring.",
)
TOO_LARGE = Entry(
    "mirror_session.too_large",
    "is larger than {bytes:,} bytes",
    remedy="Give the file that `flowcheck ports layout.toml --json > FILE` wrote.",
)
NOT_PORTS_JSON = Entry(
    "mirror_session.not_ports_json",
    "is not the output of `flowcheck ports layout.toml --json`: {error}",
    cause="The file is another one, or cut off.",
    remedy="Write it again: `flowcheck ports layout.toml --json > FILE`.",
)
PORT_NOT_IN_FILE = Entry(
    "mirror_session.port_not_in_file",
    "{file} does not have this port",
    cause="The file is of another switch or another cluster.",
    remedy="Give the file of this switch, or correct the port's name.",
)
NO_MEAN_RATE = Entry(
    "mirror_session.no_mean_rate",
    "the file has no mean rate of this port",
    remedy="State `[traffic]` in the layout file and run `flowcheck ports layout.toml --json` "
    "again.",
)

# Options of apply and remove.
APPLY_UNSUPPORTED = Entry(
    "mirror_session.apply_unsupported",
    "apply and remove support {supported} only",
    also=("os",),
    remedy="Print the commands, and paste them: `flowcheck switch render --os {os!q} --source "
    "PORT --monitor PORT`.",
)
OPTION_OF_OTHER_OS = Entry(
    "mirror_session.option_of_other_os",
    "can be used with --os {os} only",
    remedy="Leave it out.",
)
JOURNAL_UNWRITABLE = Entry(
    "mirror_session.journal_unwritable",
    "cannot be written ({error}), and FlowCheck records there what it makes",
    remedy="Give another folder, or run the command as root.",
)
MONITOR_SLOWER = Entry(
    "mirror_session.monitor_slower",
    "runs at {gbps:g} Gb/s, but its sources run at {parts} = {total:g} Gb/s: copies of a "
    "burst would be dropped",
    remedy="Use fewer directions or a faster port; or give `--oversubscribe`, if `flowcheck "
    "switch check --os OS --source PORT --monitor PORT --source-gbps N --monitor-gbps N` "
    "warns but does not refuse.",
)
MONITOR_SLOWER_WITH_OTHERS = Entry(
    "mirror_session.monitor_slower_with_others",
    "runs at {gbps:g} Gb/s, but its sources, and {others}, whose copies go there "
    "already, run at {parts} = {total:g} Gb/s: copies of a burst would be dropped",
    remedy="Use fewer directions or a faster port; or give `--oversubscribe`, if `flowcheck "
    "switch check --os OS --source PORT --monitor PORT --source-gbps N --monitor-gbps N` "
    "warns but does not refuse.",
)
