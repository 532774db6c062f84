"""Findings of errors: a setting or a command line that is refused, and text that a system call or a
library gave."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

SETTING_REFUSED = Entry("setting.refused", "{key} = {value}: {right}{place}")
SETTING_MISSING = Entry("setting.missing", "{key} is not set: {right}{place}")
"""place: where it stands, or is to stand; null: not in a file."""
FILE_MISSING = Entry(
    "setting.file_missing",
    "{key} {file} does not exist",
    cause="The path is misspelt, or the file was moved.",
    remedy="Correct the path; a relative one begins at the working directory (`pwd`).",
)
IN_FILE = Entry("setting.in_settings_file", "; see {file}")
AT_LINE = Entry("setting.at_line_of_file", "; see {file}, line {line}")
BESIDE_SETTINGS = Entry(
    "setting.beside_settings",
    "{why}; {found} is there: relative paths of a job file begin at the working directory of the "
    "command ({folder}), not at the job file",
    cause="The path is meant from the job file's folder.",
    remedy="Start the command in the job file's folder, or state the full path.",
)
ERROR_TEXT = Entry("error.text", "{text}", also=("kind",))
"""kind: of FlowCheck's error; the text is not ours alone."""
# What the parser of command lines refuses.

CORRECT_VALUE = "Correct the value, or leave the setting out where it has a default."
"""Where the sentence says already what the value must be."""
SEE_HELP = "`{command} --help` lists its arguments and options."
NO_LIKE_COMMAND = Entry("usage.no_like_command", "none")
LIKE_COMMANDS = Entry("usage.like_commands", "; similar names: {near}")
UNKNOWN_COMMAND = Entry(
    "usage.unknown_command",
    "{command} has no command {word!r}",
    also=("near", "hint"),
    remedy="`{command} --help` lists all commands{hint}.",
)
UNKNOWN_OPTION = Entry(
    "usage.unknown_option", "{text}", also=("option", "command"), remedy=SEE_HELP
)
"""text: the parser's own words, which name options like it."""
MISSING_PARAMETER = Entry(
    "usage.missing_parameter",
    "{usage} is missing",
    also=("parameter", "metavar", "command"),
    remedy=SEE_HELP,
)
"""usage: as the command line has it, `--source PORT` or `FILE...`; metavar: its value there."""
WRONG_PARAMETER = Entry(
    "usage.wrong_parameter", "{why}", also=("parameter", "command"), remedy=SEE_HELP
)
"""why: WRONG_VALUE; where the parser tells no value, its own words."""
WRONG_VALUE = Entry("usage.wrong_value", "{parameter} = {value}: {right}")
"""right: one of those below, or a finding of a setting; of what else a parser refuses, its own
words."""
NOT_A_NUMBER = Entry("usage.not_a_number", "must be a number", remedy=CORRECT_VALUE)
NOT_A_WHOLE_NUMBER = Entry(
    "usage.not_a_whole_number", "must be a whole number", remedy=CORRECT_VALUE
)
USAGE_REFUSED = Entry("usage.refused", "{text}", also=("command",), remedy=SEE_HELP)
"""text: the parser's own words."""
CORE_REFUSED = Entry(
    "error.core_refused",
    "{subject}: {reason}",
    also=("errno",),
    cause="The kernel or the C core refused, and gave no more than an error number.",
    remedy="Read the log of the stage in the run directory; report it with the logs.",
)
"""Where C stored no row of its table (dpdk_ext/core/fc_error_table.h); errno: its name."""
