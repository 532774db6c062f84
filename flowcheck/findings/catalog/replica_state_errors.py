"""Replica files that cannot be made or read, and steps that a replica does not apply."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# The state file.

ALREADY_HERE = Entry("replica.already_here", "{path}: a replica is already here; open or remove it")
OPEN_ELSEWHERE = Entry("replica.open_elsewhere", "{path}: another process has this replica open")
CANNOT_OPEN = Entry("replica.cannot_open", "{path}: the replica state cannot be opened: {error}")
CANNOT_READ = Entry("replica.cannot_read", "{path}: the replica state cannot be read: {error}")
TOO_SHORT = Entry(
    "replica.too_short", "{path}: not a replica state: {bytes} bytes are too few for its header"
)
OTHER_KIND = Entry("replica.other_kind", "{path}: not a replica state (starts with {begin})")
OTHER_VERSION = Entry(
    "replica.other_version",
    "{path}: state of layout version {version}, this program reads {own}: go on with the release "
    "that made it, or begin anew in another run directory",
)
CUT_OFF = Entry(
    "replica.cut_off", "{path}: {bytes} bytes, its header says {expected}; the file was cut off"
)
HEADER_DAMAGED = Entry(
    "replica.header_damaged", "{path}: the header's checksum differs; the header is damaged"
)
NO_WHOLE_STEP = Entry(
    "replica.no_whole_step",
    "{path}: no commit slot is whole; the replica must be made anew",
)
COMMITS_CHANGING = Entry(
    "replica.commits_changing", "the newest step of a replica changed during each of {reads} reads"
)
STEP_NOT_HELD = Entry(
    "replica.step_not_held", "{path}: every step changed during each of {reads} reads"
)
COPY_NOT_HELD = Entry(
    "replica.copy_not_held",
    "{path}: every step changed during each of {reads} reads, so that its bytes do not have their "
    "digest; where replica.keep_bytes has room for one more version, a step stays while it is read",
)
DIGEST_DIFFERS = Entry(
    "replica.digest_differs", "{path}: the bytes of step {step} do not have their digest"
)
BYTES_CHANGED = Entry(
    "replica.bytes_changed",
    "{path}: the bytes of step {step} do not have their digest; the file was changed or the memory "
    "is faulty",
)
OVERWRITTEN = Entry(
    "replica.overwritten",
    "{path}: step {step} was overwritten while it was read, because other readers hold the other "
    "steps: make replica.keep_bytes larger",
)
NOT_KEPT_IN = Entry("replica.not_kept_in", "{path}: step {step} is not kept (steps kept: {kept})")
NO_STEPS = Entry("replica.no_steps", "none")
NO_ROOM_FOR_IT = Entry(
    "replica.no_room_for_it",
    "{folder}: a replica of {needed:,} bytes does not fit ({account}): there are {free:,} bytes "
    "free{memory}; fewer earlier steps ([replica] keep_bytes){pages}, another run directory or a "
    "machine with more memory will do",
)
AND_MEMORY = Entry("replica.and_memory", ", and the machine has {bytes:,} of memory")
MORE_HUGE_PAGES = Entry(
    "replica.more_huge_pages", ", more huge pages (scripts/hugepages reserve N)"
)
CPU_NOT_ALLOWED = Entry("replica.cpu_not_allowed", "may be one of {cpus} here")

# Steps.

CLOSED = Entry("replica.closed", "the replica is closed")
STEP_IS_OVER = Entry("replica.step_is_over", "this step was committed or given up; begin it again")
OTHER_OPTIMIZER = Entry(
    "replica.other_optimizer", "{path}: this replica was made with other optimizer settings"
)
OTHER_OPTIMIZER_THAN = Entry(
    "replica.other_optimizer_than",
    "{path}: this replica was made with other optimizer settings than {optimizer}",
)
OUT_OF_ORDER = Entry(
    "replica.out_of_order", "the replica is at step {step}, but got the gradients of step {given}"
)
OTHER_SECTIONS = Entry(
    "replica.other_sections", "a base with the sections {sections} does not fit this replica"
)
NOT_KEPT = Entry("replica.not_kept", "step {step} is not kept (steps kept: {kept})")
TRAINER_ENDS = Entry("replica.trainer_ends", "the trainer ends here: {error}")

# The log of digests.

OTHER_DIGEST_LOG = Entry(
    "digest_log.other_log",
    "{path}: not the trace of a replica of {tensors} tensors, or of another release (this one "
    "writes version {version}): remove it, or use another run directory",
)
NOT_A_DIGEST_LOG = Entry("digest_log.not_one", "{path}: not a trace that this program reads")
DIGEST_COUNT = Entry("digest_log.count", "{path}: {digests} digests for {tensors} tensors")

# The log of gradients.

LOG_NOT_WRITABLE = Entry(
    "gradient_log.not_writable",
    "cannot be written as {user}: {error}: name a file in a folder of that user's",
)
LOG_OUT_OF_ORDER = Entry(
    "gradient_log.out_of_order",
    "the log ends with iteration {last}, but got iteration {iteration}",
)
LOG_CHANGED = Entry("gradient_log.changed", "{path}: the gradient of record {record} was changed")
OTHER_LOG = Entry("gradient_log.other_log", "{path}: not a gradient log of this job; remove it")
