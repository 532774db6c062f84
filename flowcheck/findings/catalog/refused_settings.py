"""What a setting of the job file, or an option, must be instead. The error names key and value."""

from __future__ import annotations

from flowcheck.findings.catalog.general_errors import CORRECT_VALUE
from flowcheck.findings.finding import Entry

# Of any setting.

AT_LEAST = Entry(
    "setting.at_least",
    "must be {least} or more",
    remedy=CORRECT_VALUE,
)
ABOVE = Entry(
    "setting.above",
    "must be above {bound}",
    remedy=CORRECT_VALUE,
)
FROM_TO = Entry(
    "setting.from_to",
    "must be from {least} to {most}",
    remedy=CORRECT_VALUE,
)
ONE_OF = Entry(
    "setting.one_of",
    "not a known value",
    also=("choices",),
    remedy="Give one of {choices}.",
)
FINITE = Entry(
    "setting.finite",
    "must be a finite number",
    remedy=CORRECT_VALUE,
)
FINITE_ABOVE = Entry(
    "setting.finite_above",
    "must be a number above {bound}",
    remedy=CORRECT_VALUE,
)
NOT_ACCEPTED = Entry("setting.not_accepted", "{text}", remedy=CORRECT_VALUE)
"""text: of the library that reads settings."""
WRONG_TYPE = Entry(
    "setting.wrong_type",
    "must be {wanted}, not {found}",
    remedy=CORRECT_VALUE,
)
WRONG_LENGTH = Entry(
    "setting.wrong_length",
    "must be a list of {wanted}, not of {found}",
    remedy=CORRECT_VALUE,
)
NOT_STATED = Entry(
    "setting.not_stated",
    "{key} must be stated",
    remedy="State it in that table.",
)
NEEDS_OTHER = Entry(
    "setting.needs_other",
    "needs {other}",
    remedy="State the other one too, or leave this one out.",
)
UNKNOWN_KEY = Entry(
    "setting.unknown_key",
    "is not a known key; {hint}",
    remedy="Correct the key, or leave it out.",
)
UNKNOWN_KEYS = Entry(
    "setting.unknown_keys",
    "is not a known key; {hint}; nor are {others}",
    remedy="Correct the keys, or leave them out.",
)
ALSO_UNKNOWN = Entry("setting.also_unknown", "{key} ({hint})")
DID_YOU_MEAN = Entry("setting.did_you_mean", "did you mean {key}?")
KNOWN_KEYS = Entry("setting.known_keys", "known keys: {keys}")
ABOVE_TABLES = Entry(
    "setting.above_tables",
    "{key} belongs above the first [table]",
    remedy="Move its line above the first table of the file.",
)
VERSION = Entry(
    "setting.version",
    "is not a release number",
    also=("short", "long"),
    remedy='State it as "{short}" or "{long}".',
)
NOT_AN_ADDRESS = Entry(
    "setting.not_an_address",
    "not an IP address",
    remedy="Write it as in 10.0.0.1 or fd00::1.",
)

# The file itself.

UNREADABLE = Entry(
    "setting.file_unreadable",
    "cannot be read: {error}",
    remedy="Check the path and its permissions (`ls -l`).",
)
NOT_A_TEXT_FILE = Entry(
    "setting.not_a_text_file",
    "is neither a regular file nor a pipe",
    cause="A device or a socket may give bytes without end.",
    remedy="Name a file of text.",
)
TOML_TOO_LARGE = Entry(
    "setting.toml_too_large",
    "is larger than {bytes:,} bytes",
    remedy="Name the file with the settings.",
)
IS_LAYOUT_FILE = Entry(
    "setting.is_layout_file",
    "is a layout file (it has {tables}), and this command reads a job file: sources, model and "
    "optimizer",
    cause="A layout file tells how the cluster is cabled, a job file how a chain runs.",
    remedy="Name a job file; `flowcheck ports {file!q}` reads the layout, and "
    "with `--mirrors FILE` it writes the `[[mirror]]` tables of a job file.",
    also=("file",),
)
NOT_TOML = Entry(
    "setting.not_toml",
    "is not valid TOML: {error}",
    remedy="Correct the file there.",
)

# Where frames come from, and how they are taken.

NO_SOURCE = Entry(
    "setting.no_source",
    "the file does not say where frames come from",
    remedy='Add a `[[source]]` table with one of `interface = "eth1"`, `pci = "0000:3b:00.0"`, '
    '`file = "job.pcap"` or `vdev = "..."`.',
)
EMPTY_SOURCES = Entry(
    "setting.empty_sources",
    "there is no [[source]] of frames",
    remedy='State at least one, such as `[[source]]` with `interface = "eth1"`.',
)
LOGS_BESIDE_SOURCES = Entry(
    "setting.logs_beside_sources",
    "[[source]] and [gradients] are both stated: a replica is stepped from one of them",
    remedy="Keep one of them and remove the other.",
)
NO_LOGS = Entry(
    "setting.no_logs",
    "no gradient log is named",
    remedy="Name at least one: `logs` in `[gradients]`.",
)
LEARNED_FOR_LOGS = Entry(
    "setting.learned_for_logs",
    "with [gradients] the job is not learned from frames",
    remedy="Name the `learned/job.json` of the chain that writes the logs, with its "
    "`weights.bin` beside it: `learned` in `[model]`.",
)
LOGS_OR_CHAINS = Entry(
    "setting.logs_or_chains",
    "logs and chains are both stated: a replica is stepped from one of them",
    remedy="Keep one of them and remove the other.",
)
CHAIN_URL = Entry(
    "setting.chain_url",
    "the address of a chain with `[copies]`",
    also=("example",),
    remedy="State it as {example}.",
)
LEARNED_FROM_CHAIN = Entry(
    "setting.learned_from_chain",
    "with `chains` in [gradients] what is known of the job comes from the chain",
    remedy="Leave `learned` out.",
)
COPIES_OF_ONE_JOB = Entry(
    "setting.copies_of_one_job",
    "with [copies], state one job alone",
    remedy="Leave `jobs` and the `[[job]]` tables out, and give each job a chain of its own.",
)
LOGS_OF_ONE_JOB = Entry(
    "setting.logs_of_one_job",
    "with [gradients], state one job alone",
    remedy="Leave `jobs` and the `[[job]]` tables out, and give each job a job file of its own.",
)
ONE_SOURCE_KIND = Entry(
    "setting.one_source_kind",
    "none of pci, vdev, interface and file is named",
    remedy="Name one of them in each `[[source]]`.",
)
SEVERAL_SOURCE_KINDS = Entry(
    "setting.several_source_kinds",
    "{kinds} are stated together; a [[source]] takes one of pci, vdev, interface and file",
    remedy="Keep one of them in this `[[source]]`, and give every other port or file a "
    "`[[source]]` of its own.",
)
USER_NAME = Entry(
    "setting.user_name",
    'must be the name of a user, such as "flowcheck"',
    remedy="`scripts/node/install-node` makes this user; name it, or another one that exists "
    "(`getent passwd`).",
)
SWITCH_PORT_NAME = Entry(
    "setting.switch_port_name",
    "must be the name of a switch port",
    remedy="State it as the switch prints it, such as Ethernet1/1.",
)
RING_SLOTS = Entry(
    "setting.ring_slots",
    "must be a power of two up to {most}",
    remedy=CORRECT_VALUE,
)
RING_SLOT_BYTES = Entry(
    "setting.ring_slot_bytes",
    "must be a multiple of 64 from 128 to 65536",
    remedy=CORRECT_VALUE,
)

# The model.

FACTORY_FOR_ARGUMENTS = Entry(
    "setting.factory_for_arguments",
    "are passed to a factory, and {factory} is not stated",
    remedy="State `{factory}` too, or leave the arguments out.",
)
DTYPE_TWICE = Entry(
    "setting.dtype_twice",
    "replaces model.dtype",
    remedy="State only one of them.",
)
DTYPES_OF_ONE_SIZE = Entry(
    "setting.dtypes_of_one_size",
    "two of them have the same size, and the wire does not show which parameter has which",
    remedy='State `factory = "file.py:function"` in `[model]` instead.',
)
NAME_TWICE = Entry(
    "setting.name_twice",
    "two parameters have this name",
    remedy="Give each parameter a name of its own.",
)

# Several jobs.

HOST_ADDRESS = Entry(
    "setting.host_address",
    "is not an IP address",
    remedy="State one that `flowcheck analyze CAPTURE` prints, such as 10.0.0.1.",
)
LAST_STEP = Entry(
    "setting.last_step",
    "must be 1 or more: the trainer's last step",
    remedy="State the trainer's last step, or leave the key out.",
)
JOBS_AND_TABLES = Entry(
    "setting.jobs_and_tables",
    "there are {tables} [[job]] tables",
    remedy="Leave `jobs` out.",
)
JOB_NAME = Entry(
    "setting.job_name",
    "must be letters, digits, - and _, and no other job may have it",
    remedy="Choose another name.",
)
JOBS_ALIKE = Entry(
    "setting.jobs_alike",
    "nothing on the wire shows which of the jobs this is",
    remedy="State `hosts` for both, with addresses of its own, or a `[job.model]` with other "
    "sizes.",
)

# Sharded training.

ONE_FSDP_JOB = Entry(
    "setting.one_fsdp_job",
    "of FSDP supports one job only",
    remedy="Leave `jobs` and `[[job]]` out.",
)
OTHER_SCALER = Entry(
    "setting.other_scaler",
    "of torch: DeepSpeed scales its loss by a rule of its own, which is not followed",
    remedy="State a fixed loss scale (`loss_scale` of DeepSpeed) as `[optimizer] "
    "gradient_divisor`; with a dynamic one leave `[optimizer]` out, and parameters are followed.",
)
FACTORY_FORM = Entry(
    "setting.factory_form",
    "does not name a function",
    remedy='Write it as "file.py:function".',
)
MESH_RANKS = Entry(
    "setting.mesh_ranks",
    "is not the number of ranks of `mesh`, {ranks}",
    remedy="Leave `ranks` out, or correct `mesh`.",
)
MODEL_BESIDE_MESH = Entry(
    "setting.model_beside_mesh",
    'cannot be stated with [sharded] style = "hsdp", whose factory is the model',
    remedy="Leave it out.",
)
SUMS_DIVIDED_LATER = Entry(
    "setting.sums_divided_later",
    "divides what it sums in {dtype} by {divisor} behind the all-reduce, before it has the "
    "parameters' type: FlowCheck does not follow that",
    cause="torch divides sums of float16 in two parts, and sums of any type with "
    "set_force_sum_reduction_for_comms(True).",
    remedy="Sum in float32 or bfloat16: MixedPrecisionPolicy(reduce_dtype=torch.float32), without "
    "set_force_sum_reduction_for_comms.",
)
OTHER_DIVISOR = Entry(
    "setting.other_divisor",
    "is not what the model of [sharded] divides its sums by, {divisor}",
    remedy="Leave `gradient_divisor` out.",
)
SHARD_NOT_STATED = Entry(
    "setting.shard_not_stated",
    "is not stated, and a mesh of {shards} shards needs it: nothing on the wire names the shard "
    "that a mirrored port carries",
    remedy="State it: 0 for the port of each node's first GPU, 1 for the second one, and so on. If "
    "the ports of all shards are mirrored, state `addresses` in its place.",
)
ADDRESS_EACH = Entry(
    "setting.address_each",
    "is not one address for each of several shards: the mesh has {shards}",
    remedy="List one of each shard, all different: those of the NICs of the GPUs of one node, in "
    "the order of the GPUs. Leave it out with a mesh (N, 1).",
)
ADDRESSES_FOR_JOBS = Entry(
    "setting.addresses_for_jobs",
    "of FSDP supports one job only, or with `addresses` all shards of one",
    remedy="Leave `jobs` and `[[job]]` out. If they were the shards of a mesh (N, S), state "
    "`addresses` in [sharded].",
)
NOT_OF_ALL_SHARDS = Entry(
    "setting.not_of_all_shards",
    "takes files or answers of whole models, and each job of `addresses` has a shard of one: that "
    "is not done yet",
    remedy="Leave it out, and run `flowcheck audit FILE{this_run!o}` for a checkpoint of "
    "the trainer: it compares all shards.",
)
SHARDS_ARE_JOBS = Entry(
    "setting.shards_are_jobs",
    "cannot be stated beside [sharded] addresses, each of which is a job of its own",
    remedy="Leave it out.",
)
ONE_SHARD_CLIPPED = Entry(
    "setting.one_shard_clipped",
    "takes a norm over all shards, and the mirrored port carries one of {shards}",
    remedy="Mirror the ports of all shards and state `addresses`, or train without clipping by a "
    "norm, or with a mesh (N, 1).",
)
ONE_SHARD_NOT_PER_ELEMENT = Entry(
    "setting.one_shard_not_per_element",
    "has steps in which what becomes of an element may depend on others, and the mirrored port "
    "carries one of {shards} shards",
    remedy="Use an optimizer that steps each element by itself, without a loss scale; or train "
    "with a mesh (N, 1).",
)
ONE_SHARD_FORMAT = Entry(
    "setting.one_shard_format",
    "is a format of whole models, and the replica has one of {shards} shards; {formats} may hold "
    "one",
    remedy="Use one of these.",
)
OF_STYLES = Entry(
    "setting.of_styles",
    "can be used with style = {styles} only",
    cause="The key belongs to other styles of sharded training.",
    remedy="Leave it out, or correct `style`.",
)

# Checkpoints, servers.

PERSIST_TARGET = Entry(
    "setting.persist_target",
    "it is not stated where to write",
    remedy="Name a folder or a URL such as s3://bucket/job: `target` in `[persist]`.",
)
WATCHED_FOLDER = Entry(
    "setting.watched_folder",
    "it is not stated which folder to watch",
    remedy="Name the folder to which the trainer writes its checkpoints: `folder` in `[audit]`.",
)
PERSIST_INTERVAL = Entry(
    "setting.persist_interval",
    "it is not stated when to write",
    remedy="State `every_steps`, `every_minutes` or both in `[persist]`.",
)
TOKEN_NEEDED = Entry(
    "setting.token_needed",
    "clients on other machines need a token",
    also=("token_file", "loopback"),
    remedy="State {token_file}, or listen on this machine only: {loopback}.",
)
AN_ADDRESS_SUCH_AS = Entry("setting.an_address_such_as", "an address such as {address}")
ADDRESS_AND_PORT = Entry(
    "setting.address_and_port",
    "not an address and a port",
    also=("address",),
    remedy='Write it as in "{address}" or "[::1]:9464".',
)
PORT_NUMBER = Entry(
    "setting.port_number",
    "port {port} must be from 0 to {most}",
    remedy=CORRECT_VALUE,
)

FOLDER_IS_FILE = Entry(
    "setting.folder_is_file",
    "must be a folder, and {file} is a file",
    remedy="Name a folder: one that does not exist is made.",
)
