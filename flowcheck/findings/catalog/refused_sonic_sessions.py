"""Mirror sessions that `flowcheck switch apply` and `remove` do not touch on SONiC, and why."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

SONIC_HOST_NEEDED = Entry(
    "sonic_session.host_needed",
    "the switch is not named",
    remedy="Give its name or address with `--host`, as ssh takes it.",
)

# Ports.
SONIC_NO_SUCH_PORT = Entry(
    "sonic_session.no_such_port",
    "the switch's CONFIG_DB has no such port",
    remedy="`show interfaces status` lists its ports.",
)
SONIC_MONITOR_IS_MEMBER = Entry(
    "sonic_session.monitor_is_member",
    "is a member of {owner}",
    remedy="Give a port that is in no VLAN and no port channel.",
)
SONIC_MONITOR_IS_ROUTED = Entry(
    "sonic_session.monitor_is_routed",
    "is a routed port",
    remedy="Give a port without an address.",
)
ASIC_CANNOT_MIRROR = Entry(
    "sonic_session.asic_cannot_mirror",
    "this switch's ASIC cannot mirror {way}",
    remedy="Mirror the other direction.",
)

# Sessions that are there already.
SONIC_NAME_TAKEN = Entry(
    "sonic_session.name_taken",
    "the switch has a session of this name that was not made from this machine",
    remedy="Give another name, or have its owner remove it.",
)
SONIC_NOT_REMOVED = Entry(
    "sonic_session.not_removed",
    "{host} has it, but it was not made from this machine, or was changed since, so it "
    "is left as it is",
    remedy="Print the commands that remove it: `flowcheck switch render --os sonic --source "
    "PORT --monitor PORT --part remove`.",
)
SONIC_MONITOR_TAKEN = Entry(
    "sonic_session.monitor_taken",
    "is the monitor port of session {session}, and SONiC allows one session a monitor port",
    remedy="Give another port.",
)
SONIC_MONITOR_WATCHED = Entry(
    "sonic_session.monitor_watched",
    "is watched by session {session}, so its copies would be copied again",
    remedy="Give another port.",
)
SONIC_SOURCE_IS_MONITOR = Entry(
    "sonic_session.source_is_monitor",
    "is the monitor port of session {session}, so its copies would be copied again",
    remedy="Leave it out.",
)
SONIC_SOURCE_WATCHED = Entry(
    "sonic_session.source_watched",
    "session {session} watches it already",
    remedy="Leave it out, or have that session removed.",
)
