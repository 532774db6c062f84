"""`flowcheck switch check`: what each rule on a mirror session says."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Ports, directions and session numbers.
PORT_TWICE = Entry(
    "switch_rule.port_twice",
    "{ports} is named more than once",
    remedy="Name each port once, with `:both` for both directions.",
)
PORTS_ONCE = Entry("switch_rule.ports_once", "{count} watched, each once")
MONITOR_WATCHED = Entry(
    "switch_rule.monitor_watched",
    "{port} is watched too: its own copies would be copied again",
    remedy="Take another monitor port, or leave it out of the sources.",
)
MONITOR_NOT_WATCHED = Entry("switch_rule.monitor_not_watched", "{port} is not watched")
TUNNEL_NOT_WATCHED = Entry("switch_rule.tunnel_not_watched", "a tunnel is not watched")
ONE_DIRECTION_ONLY = Entry(
    "switch_rule.one_direction_only",
    "{platform} has one direction for all ports of a session, and a monitor port is in "
    "one session only, but {directions} were asked for",
    remedy="Use two monitor ports, or one direction.",
)
TWO_SESSIONS = Entry(
    "switch_rule.two_sessions",
    "a session has one direction: two sessions, this number for rx and the next one for tx",
)
DIRECTIONS = Entry(
    "switch_rule.directions", "{directions}, as the switch sees it: rx is what the server sends"
)
ANY_FREE_NAME = Entry("switch_rule.any_free_name", "called {name}; any name that is free")
NUMBER_BEYOND_GUESS = Entry(
    "switch_rule.number_beyond_guess",
    "takes {numbers}; the platform's limits are unknown, and FlowCheck accepts 1 to {most}",
    remedy="Take a number in that range.",
    between=" and ",
)
NUMBER_UNCHECKED = Entry(
    "switch_rule.number_unchecked",
    "takes {numbers}; the platform's limits are unknown",
    between=" and ",
)
NUMBER_OUT_OF_RANGE = Entry(
    "switch_rule.number_out_of_range",
    "takes {numbers}; {platform} has {least} to {most}",
    remedy="Take a number in that range.",
    between=" and ",
)
NUMBER_FITS = Entry(
    "switch_rule.number_fits", "takes {numbers} of {least} to {most}", between=" and "
)

# Where the lines of the set-up were learned.
LINES_READ = Entry(
    "switch_rule.lines_read",
    "one {what}; the lines of its set-up were read in documents, the weakest of them {evidence}",
)
LINES_FROM_MEMORY = Entry(
    "switch_rule.lines_from_memory",
    "one {what}; these lines of its set-up are from memory (M): {lines}",
    remedy="Check them on your release before you paste them.",
)
MORE_LINES_FROM_MEMORY = Entry(
    "switch_rule.more_lines_from_memory",
    "one {what}; these lines of its set-up are from memory (M): {lines} and {more} more",
    remedy="Check them on your release before you paste them.",
)

# Sessions that the switch has already.
OVERLAP_UNCHECKED = Entry(
    "switch_rule.overlap_unchecked",
    "not checked: the sessions that the switch has are not known",
    remedy="State them as `[[session]]` tables of a file, with `--state FILE`.",
)
NO_OVERLAP = Entry("switch_rule.no_overlap", "none with the {sessions} sessions that exist")
SESSION_EXISTS = Entry(
    "switch_rule.session_exists",
    "session {session} exists already and would be changed",
    remedy="Take another name or number.",
)
MONITOR_SHARED = Entry(
    "switch_rule.monitor_shared",
    "session {session} sends its copies to {port} too: the sum of both would have to fit it",
    remedy="Take another monitor port.",
)
MONITOR_WATCHED_BY = Entry(
    "switch_rule.monitor_watched_by",
    "session {session} watches {port}: copies would be copied again",
    remedy="Take another monitor port.",
)
SOURCE_IS_MONITOR_OF = Entry(
    "switch_rule.source_is_monitor_of",
    "{port} is the monitor port of session {session}: its copies would be copied again",
    remedy="Leave this port out.",
)
SOURCE_WATCHED_BY = Entry(
    "switch_rule.source_watched_by",
    "session {session} watches {source} already: the same packets would come twice",
    remedy="Leave it out, or have that session removed.",
)
PORT_NAMES_COLLIDE = Entry(
    "switch_rule.port_names_collide",
    "{port} and {other} of session {session}: {platform} compares port names by their beginning "
    "and would refuse",
    remedy="Put both ports into one session, or remove the other session first.",
)
ONLY_RX_LEFT = Entry(
    "switch_rule.only_rx_left",
    "{sessions} sessions watch both directions: the next one can watch rx only",
    remedy="Mirror rx only, or have one of those sessions removed.",
)

# Whether copies fit.
ONE_PORT_BOTH_WAYS = Entry("switch_rule.sum_of_one_port", "rx and tx of one port: {sum}")
SUM_OF_SOURCES = Entry("switch_rule.sum_of_sources", "{sum} = {gbps:.4g} Gb/s")
FITS_MONITOR = Entry("switch_rule.fits_monitor", "{sum}, of {gbps:g} Gb/s")
OVER_MONITOR = Entry(
    "switch_rule.over_monitor",
    "{sum}, over {gbps:g} Gb/s by {over:.4g}",
    remedy="Use fewer directions or a faster monitor port.",
)
MEAN_OVER_MONITOR = Entry(
    "switch_rule.mean_over_monitor",
    "{sum}, over {gbps:g} Gb/s by {over:.4g}, and the job's mean is {times:.4g} * ({formula}) = "
    "{mean:.4g} Gb/s",
    remedy="Use fewer directions or a faster monitor port.",
)
BURSTS_OVER_MONITOR = Entry(
    "switch_rule.bursts_over_monitor",
    "{sum}, over {gbps:g} Gb/s by {over:.4g}; the job's mean is {times:.4g} * ({formula}) = "
    "{mean:.4g} Gb/s, which fits only as long as the switch's buffer holds each burst at line rate",
)
NOT_TRUNCATED = Entry(
    "switch_rule.not_truncated",
    "no command here cuts copies; check on the switch that this is not set: {command}",
)
PATH_MTU_UNCHECKED = Entry(
    "switch_rule.path_mtu_unchecked",
    "needs {formula} = {bytes} bytes, and the MTU of the path is not stated",
    remedy="Give it with `--path-mtu` to have it checked.",
)
PATH_MTU_TOO_SMALL = Entry(
    "switch_rule.path_mtu_too_small",
    "{formula} = {bytes} bytes, over {path_bytes}: frames would be cut",
    remedy="Raise the MTU of the route, or use a monitor port instead of a tunnel.",
)
PATH_MTU_FITS = Entry("switch_rule.path_mtu_fits", "{formula} = {bytes} bytes, of {path_bytes}")
