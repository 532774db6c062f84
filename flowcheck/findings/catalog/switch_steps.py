"""What one command of `flowcheck switch apply` and `remove` does: + adds, - removes, ~ changes."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

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
