"""Why the C core makes or opens a file of shared memory (ring, flow table, staging, shard) not. The
names are rows of dpdk_ext/core/fc_error_table.h.

Those without a remedy stand in a finding of `shared_memory_files`, which says what to do.
"""

from __future__ import annotations

from flowcheck.findings.finding import Entry

OF_OTHERS = "Files that another user can write to are not trusted: their content would decide what "
OF_OTHERS += "this process does."

FILE_NOT_MAPPED = Entry(
    "shared_memory.file_not_mapped",
    "cannot map {bytes:,} bytes of {path}: {reason}",
    also=("errno",),
    cause="The kernel gave no address space or no memory for the file.",
    remedy="See `ulimit -v` and the machine's free memory (`free -m`).",
)
TRUSTED_USERS_TOO_MANY = Entry(
    "shared_memory.trusted_users_too_many", "at most {limit} users can be trusted"
)
FILE_OF_ANOTHER_USER = Entry(
    "shared_memory.file_of_another_user",
    "{path} belongs to uid {owner_uid}, and this process runs as uid {own_uid}: files of other "
    "users are not used",
    cause=OF_OTHERS,
    remedy="Run the command as the chain's user or as root (`ls -ln` shows the owner).",
)
FOLDER_OF_ANOTHER_USER = Entry(
    "shared_memory.folder_of_another_user",
    "the folder {path} belongs to uid {owner_uid}, and this process runs as uid {own_uid}: "
    "folders of other users are not used",
    cause=OF_OTHERS,
    remedy="Run the command as the chain's user or as root (`ls -ldn` shows the owner).",
)
FILE_WRITABLE_BY_OTHERS = Entry(
    "shared_memory.file_writable_by_others",
    "{path} may be written to by others (mode {mode:04o}), so its content is not trusted",
    cause=OF_OTHERS,
    remedy="`flowcheck down{this_run!o}` removes the file; start the chain again.",
)
FOLDER_WRITABLE_BY_OTHERS = Entry(
    "shared_memory.folder_writable_by_others",
    "the folder {path} may be written to by others (mode {mode:04o}), so its content is not "
    "trusted",
    cause=OF_OTHERS,
    remedy="Run `chmod go-w` on the folder, then the command again.",
)
PATH_TOO_LONG = Entry(
    "shared_memory.path_too_long",
    "cannot open {path:.64}...: a path has at most {limit:,} bytes",
    cause="The folder of the shared memory is nested too deep.",
    remedy="Name a run directory with a shorter path.",
)
FOLDER_NOT_OPENED = Entry(
    "shared_memory.folder_not_opened",
    "cannot open the folder of {path}: {reason}",
    also=("errno",),
    cause="The folder of the chain's memory is missing, or this user may not read it.",
    remedy="`flowcheck status{this_run!o}` shows whether the chain runs, and as which user.",
)
STATUS_NOT_READ = Entry(
    "shared_memory.status_not_read",
    "cannot read the status of {path}: {reason}",
    also=("errno",),
    cause="The file system refused to say what lies there.",
    remedy="See the machine's log (`dmesg`) for errors of this file system.",
)
FILE_NOT_CREATED = Entry(
    "shared_memory.file_not_created",
    "cannot create {path}: {reason}",
    also=("errno",),
    cause="The file system takes no file at this place.",
    remedy="See the owner and the mode of the folder (`ls -ld`), and whether it is mounted read "
    "only.",
)
MEMORY_NOT_RESERVED = Entry(
    "shared_memory.memory_not_reserved",
    "cannot reserve {bytes:,} bytes for {path}: {reason}",
    also=("errno",),
    cause="A file is reserved in full when it is made, and the file system refused.",
    remedy="`flowcheck plan job.toml` shows the sum line by line; free memory, or lower it.",
)
FILE_NOT_REGULAR = Entry("shared_memory.file_not_regular", "{path} is not a regular file")
FILE_EMPTY = Entry("shared_memory.file_empty", "{path} is empty: it was never finished")
FILE_IS_LINK = Entry(
    "shared_memory.file_is_link",
    "cannot open {path}: it is a link",
    cause="A link could lead to a file of somebody else, so none is followed.",
    remedy="Remove the link; `flowcheck down{this_run!o}` removes what else is left of the chain.",
)
FILE_NOT_OPENED = Entry(
    "shared_memory.file_not_opened",
    "cannot open {path}: {reason}",
    also=("errno",),
    cause="The kernel refused to open the file.",
    remedy="See how many files this user may open (`ulimit -n`), and the owner of the file.",
)

# What lies in the file. Each stands in DAMAGED, OTHER_LAYOUT or SIZES_REFUSED.

NOT_A_RING = Entry(
    "shared_memory.not_a_ring", "{path} is not a FlowCheck ring, or was never finished"
)
NOT_A_FLOW_TABLE = Entry(
    "shared_memory.not_a_flow_table", "{path} is not a FlowCheck flow table, or was never finished"
)
NOT_A_STAGING_FILE = Entry(
    "shared_memory.not_a_staging_file",
    "{path} is not a FlowCheck staging file, or was never finished",
)
NOT_A_SHARD = Entry(
    "shared_memory.not_a_shard", "{path} is not a FlowCheck shard, or was never finished"
)
OTHER_LAYOUT_VERSION = Entry(
    "shared_memory.other_layout_version",
    "{path} has layout version {version}, this program reads {own}",
)
SIZES_CONTRADICT = Entry(
    "shared_memory.sizes_contradict",
    "{path}: its sizes contradict each other ({bytes:,} bytes mapped)",
)
RING_SLOTS_REFUSED = Entry(
    "shared_memory.ring_slots_refused",
    "a ring of {slots} slots: must be a power of two from 2 to {limit}",
)
RING_SLOT_BYTES_REFUSED = Entry(
    "shared_memory.ring_slot_bytes_refused",
    "slots of {slot_bytes} bytes: must be a multiple of 64 from 128 to {limit}",
)
RING_READERS_DAMAGED = Entry(
    "shared_memory.ring_readers_damaged", "{path} has an invalid number of readers: {readers}"
)
RING_READERS_REFUSED = Entry(
    "shared_memory.ring_readers_refused",
    "{readers} readers of a ring: must be from 1 to {limit}",
)
RING_READER_MISSING = Entry(
    "shared_memory.ring_reader_missing",
    "{subject}: reader {reader} of a ring that has {readers}, counted from 0",
    cause="The chain was started with fewer jobs or extractors than this stage expects.",
    remedy="Start all stages with one job file: `flowcheck down{this_run!o}`, then `flowcheck up "
    "JOB.toml{this_run!o}`.",
)
FLOW_TABLE_RECORDS_REFUSED = Entry(
    "shared_memory.flow_table_records_refused",
    "a flow table of {messages} message records: must be a power of two from 4 to {limit}",
)
STAGING_RECORDS_REFUSED = Entry(
    "shared_memory.staging_records_refused",
    "staging for {messages} message records: must be a power of two",
)
STAGING_SIZES_REFUSED = Entry(
    "shared_memory.staging_sizes_refused",
    "staging of {bytes:,} bytes for {records:,} messages is not possible",
)
SHARD_ELEMENT_REFUSED = Entry(
    "shared_memory.shard_element_refused", "elements of {element_bytes} bytes: must be 2, 4 or 8"
)
SHARD_GRADIENT_REFUSED = Entry(
    "shared_memory.shard_gradient_refused",
    "a gradient of {gradient_bytes:,} bytes in elements of {element_bytes} bytes is not possible",
)
SHARD_EXTRA_REFUSED = Entry(
    "shared_memory.shard_extra_refused",
    "{extra_bytes:,} bytes after a gradient in elements of {element_bytes} bytes are not possible",
)
