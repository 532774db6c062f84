"""`flowcheck switch apply` and `remove`: what each command does (+ adds, - removes, ~ changes),
what failed, what was undone, what to know."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_SESSION_CHANGED = "Somebody else changes this switch at the same time."

# How a change ended.
INTERRUPTED = Entry(
    "switch.interrupted",
    "interrupted",
    remedy="Run the command again.",
)
STILL_TO_DO = Entry(
    "switch.still_to_do",
    "every command succeeded, but this is still to be done: {steps}",
    cause="The switch has what was asked for, but for these steps.",
    remedy="Do those steps by hand, or run the command again.",
)
NOTHING_CHANGED = Entry("switch.nothing_changed", "nothing was changed; {why}")
NOT_RESTORED = Entry(
    "switch.not_restored",
    "the state before the change was not restored",
    cause="What was done before the failure stands.",
    remedy="Look at the switch, and run `flowcheck switch remove --os OS` with the same options.",
)
REMOVE_AGAIN = Entry(
    "switch.remove_again",
    "flowcheck switch remove, with the same options, when it answers again",
)
UNDO_FAILED = Entry("switch.undo_failed", "{why}; and undoing failed: {undo}")

# Programs that are run.
PROGRAM_MISSING = Entry(
    "switch.program_missing",
    "cannot run {program}: {error}",
    remedy="Check that it is installed, and in PATH.",
)
PROGRAM_KILLED = Entry(
    "switch.program_killed",
    "{program} did not end within {limit_s:g} s: {said}",
    cause="The program waits for something that does not answer.",
    remedy="Look at the switch (it may have acted), and run the command again.",
)
PROGRAM_SAYS_TOO_MUCH = Entry(
    "switch.program_says_too_much",
    "{program} printed over {mib} MiB",
    cause="The program's output is not what FlowCheck asked for.",
    remedy="Run the command by hand and see what it prints.",
)
PROGRAM_TIMED_OUT = Entry(
    "switch.program_timed_out",
    "{program} got no answer in time: {said}",
    cause="The daemon is down or overloaded.",
    remedy="Check that it runs (`systemctl status`), then run the command again.",
)
PROGRAM_FAILED = Entry(
    "switch.program_failed",
    "{program} ended with {code}: {said}",
    cause="The program that changes or reads the switch refused; what it printed follows its exit "
    "code.",
    remedy="Correct what {program} names, then run the command again. The service that it talks to "
    "must run and let this user in: `ovs-vsctl show` tests Open vSwitch, `ssh HOST` another "
    "switch.",
)
NO_JSON = Entry(
    "switch.no_json",
    "{command}: its output is not JSON: {error}",
    cause="The program is of another version, or printed a warning beside.",
    remedy="Run the command by hand and see what it prints.",
)

# The journal and its lock.
NOT_A_JOURNAL = Entry(
    "switch.not_a_journal",
    "{path}: not a journal of FlowCheck's: {error}",
    remedy="Move it away.",
)
LOCKED = Entry(
    "switch.locked",
    "{folder}: another apply or remove is running, or a command of one that was killed: "
    "its lock was not free within {limit_s:g} s",
    remedy="Wait for its end, then run the command again.",
)

# Open vSwitch.
OVSDB_UNEXPECTED = Entry(
    "switch.ovsdb_unexpected",
    "ovsdb-client: unexpected reply of the database: {reply}",
    cause="The database server is of another version than FlowCheck knows.",
    remedy="Run `ovsdb-client dump` by hand; `flowcheck switch render --os openvswitch --source "
    "PORT --monitor PORT` prints "
    "commands to paste.",
)
OVS_NO_SOCKET = Entry(
    "switch.ovs_no_socket",
    "no ovs-vswitchd*.ctl in {folder}",
    remedy="Check that ovs-vswitchd runs: `ovs-appctl version`.",
)
OVS_SILENT = Entry(
    "switch.ovs_silent",
    "ovs-vswitchd does not answer: its database has the change, but nothing acted on it "
    "within {limit_s:g} s",
    remedy="Check that it runs: `ovs-appctl version`.",
)
OVS_NOT_COPYING = Entry(
    "switch.ovs_not_copying",
    "the mirror is in the database, but ovs-vswitchd has counted no copy within "
    "{limit_s:g} s: it did not set it up",
    remedy="See the log of ovs-vswitchd.",
)
OVS_MIRRORS_CHANGED = Entry(
    "switch.ovs_mirrors_changed",
    "somebody changed the mirrors of {bridge} while this ran",
    remedy="Run it again.",
)
OVS_PORT_GONE = Entry(
    "switch.ovs_port_gone",
    "a port of the mirror has been removed while this ran",
    cause=_SESSION_CHANGED,
    remedy="Run the command again with the ports that are there.",
)
OVS_PORT_NOT_OPEN = Entry(
    "switch.ovs_port_not_open",
    "ovs-vswitchd has not opened {port}: {error}",
    cause="The interface does not exist, or another program has it.",
    remedy="See `ovs-vsctl show` and `ip link`; then run the command again.",
)
OVS_ON_ANOTHER_MACHINE = Entry(
    "switch.ovs_on_another_machine",
    "the daemon runs on another machine",
    cause="Only on its own machine can be seen who is reached through a port.",
    remedy="Run the command on that machine.",
)
BRIDGE_OWN_PORT = Entry(
    "switch.bridge_own_port",
    "{port} is the bridge's own port: rx is only what this host itself sends through it, tx only "
    "what this host gets; frames from one port to another are in neither. For a server, take the "
    "port it is connected to",
)
FLOWS_IN_USE = Entry(
    "switch.flows_in_use",
    "flows in use are copied only when the daemon looks at them again: on its machine, adding and "
    "deleting any flow does it (ovs-ofctl add-flow and del-flows {bridge})",
)
CONTROLLED_BRIDGE = Entry(
    "switch.controlled_bridge",
    "a controller manages {bridge} and may change or remove mirrors",
    remedy="Check the mirror again later.",
)
TRAFFIC_UNCHECKED = Entry(
    "switch.traffic_unchecked",
    "whether anybody is reached through {port} was not checked: {why}",
)

# Linux tc.
TC_UNREADABLE = Entry(
    "switch.tc_unreadable",
    "{device} {way}: tc shows a filter that cannot be read: {filter}",
    cause="Another program made a filter of a kind that FlowCheck does not know.",
    remedy="Mirror at the switch, or have its owner remove the filter.",
)
NO_PREF_LEFT = Entry(
    "switch.no_pref_left",
    "{device} {way}: no pref is free for a filter of FlowCheck's",
    cause="Other programs have filters at all low places.",
    remedy="Mirror at the switch, or have the owner of one of the filters remove it.",
)
COOKIE_CHANGED = Entry(
    "switch.cookie_changed",
    "{device} {way} pref {pref}: the filter was FlowCheck's a moment ago and has another cookie "
    "now; it is left as it is",
    cause=_SESSION_CHANGED,
    remedy="See whose filter it is (`tc filter show`), and run the command again.",
)
SOURCE_DOWN = Entry("switch.source_down", "{device} is down: nothing is copied until it is up")
MONITOR_QDISC = Entry(
    "switch.monitor_qdisc", "{device} has the qdisc {qdisc}, which may drop or delay copies"
)
MONITOR_FILTERED = Entry(
    "switch.monitor_filtered",
    "{device} has filters of its own on egress, which copies pass through",
)
MONITOR_CARRIES_FRAMES = Entry(
    "switch.monitor_carries_frames",
    "{device} received {received} and sent {sent} frames in {seconds:g} s, and no mirror of "
    "FlowCheck's was there",
    remedy="Check what else uses {device}.",
)

# SONiC.
SONIC_NO_ECHO = Entry(
    "switch.sonic_no_echo",
    "{host}: its shell did not run `echo`",
    remedy="Check that this is a SONiC switch.",
)
SONIC_NO_JSON = Entry(
    "switch.sonic_no_json",
    "{host}: unexpected output of sonic-db-dump: {error}",
    cause="The switch's release prints something else.",
    remedy="Run `sonic-db-dump` there by hand; `flowcheck switch render --os sonic --source PORT "
    "--monitor PORT` prints "
    "commands to paste.",
)
SONIC_SESSION_TAKEN = Entry(
    "switch.sonic_session_taken",
    "session {session} is no longer FlowCheck's; it is left as it is",
    cause=_SESSION_CHANGED,
    remedy="See what it is now (`show mirror_session`); nothing was removed.",
)
SONIC_UNHEARD = Entry(
    "switch.sonic_unheard",
    "{why}; {host} may still run the command",
    remedy="Check the switch; `flowcheck switch remove --os sonic --host SWITCH --session NAME` "
    "takes away what came later.",
)
SONIC_NOT_ACTIVE = Entry(
    "switch.sonic_not_active",
    "{host} has the session, but does not mirror: its status is {status} after {limit_s:g} s",
    cause="The switch took the session and did not set it up: no route to the destination, or no "
    "free session in hardware.",
    remedy="`show mirror_session` on the switch has the state; check the route and its sessions.",
)
SONIC_SAVED_UNCHECKED = Entry(
    "switch.sonic_saved_unchecked",
    "whether the switch saved its configuration is unknown: {why}",
    cause="The configuration runs, and may be gone after a restart of the switch.",
    remedy="Run `config save` on the switch.",
)
SONIC_SESSION_CAME = Entry(
    "switch.sonic_session_came",
    "somebody else made session {session} while this ran",
    cause=_SESSION_CHANGED,
    remedy="Choose another `--session`, or run the command again.",
)
SONIC_SESSION_CHANGED = Entry(
    "switch.sonic_session_changed",
    "somebody else changed session {session} while this ran",
    cause=_SESSION_CHANGED,
    remedy="See what it is now (`show mirror_session`), and run the command again.",
)
PORT_NAME_BEGINS_ALIKE = Entry(
    "switch.port_name_begins_alike",
    "{port} is how {other} of session {session} begins: older releases compare port names so and "
    "would refuse",
    remedy="If this switch refuses, put both ports into one session.",
)

# Templates of the package.
NO_TEMPLATES = Entry(
    "switch.no_templates",
    "no switch templates in {folders}",
    remedy="Install FlowCheck again.",
)
BAD_TEMPLATE = Entry(
    "switch.bad_template",
    "{path}: does not begin with a comment that states the platform",
    cause="The template is not one of FlowCheck's.",
    remedy="Begin it as those in `switch_configs/` do.",
)
BAD_TEMPLATE_LINE = Entry(
    "switch.bad_template_line",
    "{os}.j2: {part}: a line has no evidence, or characters other than words: {line}",
    cause="The template is not one of FlowCheck's.",
    remedy="Write the line as those in `switch_configs/` are.",
)

# Linux tc.
ADD_FILTER = Entry("switch_step.add_filter", "+ {device} {way} -> {monitor}, pref {pref}, {form}")
REMOVE_FILTER = Entry("switch_step.remove_filter", "- {device} {way} -> {monitor}, pref {pref}")
REMOVE_STALE_FILTER = Entry(
    "switch_step.remove_stale_filter", "- {device} {way} -> a device now gone, pref {pref}"
)
REMOVE_FILTER_TABLE = Entry(
    "switch_step.remove_filter_table", "- {device} {way}: the table of pref {pref}, where it stays"
)
# Putting clsact on a device that is up, or taking it off, gives its queues to the qdisc that drops
# everything meanwhile (net/sched/sch_api.c, qdisc_graft: dev_deactivate); what it receives passes.
ADD_CLSACT = Entry(
    "switch_step.add_clsact",
    "+ {device}: the qdisc clsact, which filters hang on; what it sends is dropped for some "
    "milliseconds",
)
REMOVE_CLSACT = Entry(
    "switch_step.remove_clsact",
    "- {device}: the qdisc clsact, made by us and empty; what it sends is dropped for some "
    "milliseconds",
)

# Open vSwitch.
OVS_MIRROR = Entry("switch_step.ovs_mirror", "mirror {mirror} on {bridge}: {sources} -> {monitor}")
OVS_EMPTY_MIRROR = Entry(
    "switch_step.ovs_empty_mirror", "mirror {mirror} on {bridge}: nothing -> {monitor}"
)
ADD_MIRROR = Entry("switch_step.add_mirror", "+ {mirror}")
CHANGE_MIRROR = Entry("switch_step.change_mirror", "~ {before} becomes {after}")
REMOVE_MIRROR = Entry("switch_step.remove_mirror", "- {mirror}")

# SONiC.
ADD_SESSION = Entry(
    "switch_step.add_session", "+ session {session} on {host}: {ports} {direction} -> {monitor}"
)
REMOVE_SESSION = Entry("switch_step.remove_session", "- session {session} on {host}: {ports}")
