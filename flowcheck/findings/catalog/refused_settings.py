"""What a setting of the job file, or an option, must be instead. The error names key and value."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Of any setting.

AT_LEAST = Entry("setting.at_least", "must be {least} or more")
ABOVE = Entry("setting.above", "must be above {bound}")
FROM_TO = Entry("setting.from_to", "must be from {least} to {most}")
ONE_OF = Entry("setting.one_of", "must be one of {choices}")
FINITE = Entry("setting.finite", "must be a finite number")
FINITE_ABOVE = Entry("setting.finite_above", "must be a number above {bound}")
WRONG_TYPE = Entry("setting.wrong_type", "must be {wanted}, not {found}")
WRONG_LENGTH = Entry("setting.wrong_length", "must be a list of {wanted}, not of {found}")
NOT_STATED = Entry("setting.not_stated", "{key} must be stated")
NEEDS_OTHER = Entry(
    "setting.needs_other",
    "needs {other}",
    cause="One setting says nothing without the other.",
    remedy="State the other one too, or leave this one out.",
)
UNKNOWN_KEY = Entry(
    "setting.unknown_key",
    "is not a known key; {hint}",
    cause="The key is misspelt, or in the wrong table.",
    remedy="Correct the key, or leave it out.",
)
UNKNOWN_KEYS = Entry(
    "setting.unknown_keys",
    "is not a known key; {hint}; nor are {others}",
    cause="The keys are misspelt, or in the wrong table.",
    remedy="Correct the keys, or leave them out.",
)
ALSO_UNKNOWN = Entry("setting.also_unknown", "{key} ({hint})")
DID_YOU_MEAN = Entry("setting.did_you_mean", "did you mean {key}?")
KNOWN_KEYS = Entry("setting.known_keys", "known keys: {keys}")
ABOVE_TABLES = Entry("setting.above_tables", "{key} belongs above the first [table]")
VERSION = Entry("setting.version", 'state it as "{short}" or "{long}"')
NOT_AN_ADDRESS = Entry("setting.not_an_address", "must be an IP address")

# The file itself.

UNREADABLE = Entry(
    "setting.file_unreadable",
    "cannot be read: {error}",
    cause="The file is missing, or this user may not read it.",
    remedy="Check the path and its permissions (`ls -l`).",
)
NOT_TOML = Entry(
    "setting.not_toml",
    "is not valid TOML: {error}",
    cause="The file has a mistake at the place that the sentence names.",
    remedy="Correct the file there.",
)

# Where frames come from, and how they are taken.

NO_SOURCE = Entry(
    "setting.no_source",
    'state where frames come from: a [[source]] table with pci = "0000:3b:00.0", '
    'interface = "eth1", vdev = "..." or file = "job.pcap"',
)
EMPTY_SOURCES = Entry("setting.empty_sources", "state at least one [[source]] of frames")
LOGS_BESIDE_SOURCES = Entry(
    "setting.logs_beside_sources",
    "state either [[source]] or [gradients]: a replica is stepped from one of them",
)
NO_LOGS = Entry("setting.no_logs", "name at least one gradient log")
LEARNED_FOR_LOGS = Entry(
    "setting.learned_for_logs",
    "with [gradients], name the learned/job.json of the chain that writes the logs, with its "
    "weights.bin beside it",
)
LOGS_OF_ONE_JOB = Entry(
    "setting.logs_of_one_job",
    "with [gradients], state one job alone",
    cause="Gradient logs are of one job.",
    remedy="Leave `jobs` and the `[[job]]` tables out, and give each job a job file of its own.",
)
ONE_SOURCE_KIND = Entry("setting.one_source_kind", "name exactly one of pci, vdev, interface, file")
USER_NAME = Entry("setting.user_name", 'must be the name of a user, such as "flowcheck"')
SWITCH_PORT_NAME = Entry("setting.switch_port_name", "must be the name of a switch port")
RING_SLOTS = Entry("setting.ring_slots", "must be a power of two up to {most}")
RING_SLOT_BYTES = Entry("setting.ring_slot_bytes", "must be a multiple of 64 from 128 to 65536")

# The model.

FACTORY_FOR_ARGUMENTS = Entry(
    "setting.factory_for_arguments", "are passed to a factory: state {factory} too"
)
DTYPE_TWICE = Entry("setting.dtype_twice", "replaces model.dtype: state only one of them")
DTYPES_OF_ONE_SIZE = Entry(
    "setting.dtypes_of_one_size",
    "two of them have the same size, and the wire does not show which parameter has which: state "
    '[model] factory = "file.py:function" instead',
)
NAME_TWICE = Entry("setting.name_twice", "two parameters have this name: names must differ")

# Several jobs.

HOST_ADDRESS = Entry(
    "setting.host_address",
    "is not an IP address: state one that flowcheck analyze prints, such as 10.0.0.1",
)
LAST_STEP = Entry("setting.last_step", "must be 1 or more: the trainer's last step")
JOBS_AND_TABLES = Entry(
    "setting.jobs_and_tables", "there are {tables} [[job]] tables: leave jobs out"
)
JOB_NAME = Entry(
    "setting.job_name", "must be letters, digits, - and _, and no other job may have it"
)
JOBS_ALIKE = Entry(
    "setting.jobs_alike",
    "nothing on the wire shows which of the jobs this is: state hosts for both, with addresses of "
    "its own, or a [job.model] with other sizes",
)

# Sharded training.

ONE_FSDP_JOB = Entry(
    "setting.one_fsdp_job", "of FSDP supports one job only: leave jobs and [[job]] out"
)
FACTORY_FORM = Entry("setting.factory_form", 'must be written "file.py:function"')
OF_STYLES = Entry(
    "setting.of_styles",
    "can be used with style = {styles} only",
    cause="The key belongs to other styles of sharded training.",
    remedy="Leave it out, or correct `style`.",
)

# Checkpoints, servers.

PERSIST_TARGET = Entry("setting.persist_target", "name a folder or a URL such as s3://bucket/job")
PERSIST_INTERVAL = Entry("setting.persist_interval", "state every_steps, every_minutes or both")
TOKEN_NEEDED = Entry(
    "setting.token_needed",
    "clients on other machines need a token: state {token_file}, or {loopback}",
)
AN_ADDRESS_SUCH_AS = Entry("setting.an_address_such_as", "an address such as {address}")
ADDRESS_AND_PORT = Entry(
    "setting.address_and_port", 'must be an address and a port, such as "{address}" or "[::1]:9464"'
)
