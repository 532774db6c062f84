"""Replica files that cannot be made or read, and steps that a replica does not apply."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_FILE_CHANGED = "The replica's file was changed, or the machine's memory is faulty."
_GIVE_BASE = (
    "Restore an earlier step, or give the trainer's newest checkpoint with `flowcheck base "
    "FILE{this_run!o}`; test the memory of this machine."
)
_ANOTHER_READ = "The replica commits steps faster than this process copies one."
_MORE_KEPT = (
    "Run it again when the machine is less busy, or state a larger `[replica] keep_bytes`: "
    "then a step stays while it is read."
)
_MISTAKE = "This is a mistake in FlowCheck: report it with the logs of the run."
_OTHER_SETTINGS = "The `[optimizer]` of the job file was changed since the replica was made."
_ORDER_BROKEN = "A part of FlowCheck gave another a step that is not the next one."

# The state file.

ALREADY_HERE = Entry(
    "replica.already_here",
    "{path}: a replica is already here",
    remedy="Open it, or remove the file.",
)
OPEN_ELSEWHERE = Entry(
    "replica.open_elsewhere",
    "{path}: another process has this replica open",
    cause="A chain still runs with it, or a process of a killed one is left.",
    remedy="`flowcheck status{this_run!o}` shows it; `flowcheck down{this_run!o}` ends it.",
)
CANNOT_OPEN = Entry(
    "replica.cannot_open",
    "{path}: the replica state cannot be opened: {error}",
    remedy="`flowcheck status{this_run!o}` shows whether the chain still has it; run the "
    "command as the chain's user or as root.",
)
CANNOT_READ = Entry(
    "replica.cannot_read",
    "{path}: the replica state cannot be read: {error}",
    remedy="`flowcheck status{this_run!o}` shows whether the chain still has it; run the "
    "command as the chain's user or as root.",
)
TOO_SHORT = Entry(
    "replica.too_short",
    "{path}: not a replica state: {bytes} bytes are too few for its header",
    cause="The file was cut off, or is not a replica's.",
    remedy="Restore a checkpoint instead; `flowcheck down{this_run!o}` removes the file.",
)
OTHER_KIND = Entry(
    "replica.other_kind",
    "{path}: not a replica state (starts with {begin})",
    cause="The path is not that of a replica.",
    remedy="Name the run directory of the chain with `--run`.",
)
OTHER_VERSION = Entry(
    "replica.other_version",
    "{path}: state of layout version {version}, this program reads {own}",
    remedy="Go on with the release that made it, or begin anew in another run directory.",
)
CUT_OFF = Entry(
    "replica.cut_off",
    "{path}: {bytes} bytes, its header says {expected}; the file was cut off",
    cause="The file was copied in part, or its disk became full.",
    remedy="Restore an earlier checkpoint; `flowcheck down{this_run!o}` removes the file.",
)
HEADER_DAMAGED = Entry(
    "replica.header_damaged",
    "{path}: the header's checksum differs; the header is damaged",
    cause=_FILE_CHANGED,
    remedy=_GIVE_BASE,
)
NO_WHOLE_STEP = Entry(
    "replica.no_whole_step",
    "{path}: no commit slot is whole",
    cause="The machine stopped while the replica was being made, or the file is damaged.",
    remedy="Start the chain anew in another run directory; `flowcheck restore --checkpoint "
    "FOLDER --template FILE --out FILE` reads a checkpoint that was written.",
)
COMMITS_CHANGING = Entry(
    "replica.commits_changing",
    "the newest step of a replica changed during each of {reads} reads",
    cause=_ANOTHER_READ,
    remedy=_MORE_KEPT,
)
STEP_NOT_HELD = Entry(
    "replica.step_not_held",
    "{path}: every step changed during each of {reads} reads",
    cause=_ANOTHER_READ,
    remedy=_MORE_KEPT,
)
COPY_NOT_HELD = Entry(
    "replica.copy_not_held",
    "{path}: every step changed during each of {reads} reads, so that its bytes do not have their "
    "digest; where replica.keep_bytes has room for one more version, a step stays while it is read",
    cause=_ANOTHER_READ,
    remedy=_MORE_KEPT,
)
DIGEST_DIFFERS = Entry(
    "replica.digest_differs",
    "{path}: the bytes of step {step} do not have their digest",
    cause=_FILE_CHANGED,
    remedy=_GIVE_BASE,
)
BYTES_CHANGED = Entry(
    "replica.bytes_changed",
    "{path}: the bytes of step {step} do not have their digest; the file was changed or the memory "
    "is faulty",
    cause=_FILE_CHANGED,
    remedy=_GIVE_BASE,
)
TAINT_UNREADABLE = Entry(
    "replica.taint_unreadable",
    "{path} says which elements of the replica lack a byte of a step, and cannot be read: {error}",
    cause=_FILE_CHANGED,
    remedy="None of the replica's steps can be called exact: give the trainer's newest checkpoint "
    "with `flowcheck base FILE{this_run!o}` after removing the file; test the memory of this "
    "machine.",
)
OVERWRITTEN = Entry(
    "replica.overwritten",
    "{path}: step {step} was overwritten while it was read, because other readers hold "
    "the other steps",
    remedy="Make `keep_bytes` in `[replica]` larger.",
)
NOT_KEPT_IN = Entry(
    "replica.not_kept_in",
    "{path}: step {step} is not kept (steps kept: {kept})",
    cause="Older steps give their room to newer ones.",
    remedy="Ask for one of those; a larger `[replica] keep_bytes` keeps more.",
)
NO_STEPS = Entry("replica.no_steps", "none")
NO_ROOM_FOR_IT = Entry(
    "replica.no_room_for_it",
    "{folder}: a replica of {needed:,} bytes does not fit ({account}): there are {free:,} bytes "
    "free{memory}; fewer earlier steps ([replica] keep_bytes){pages}, another run directory or a "
    "machine with more memory will do",
    cause="The model, its optimizer's state and the kept steps need more memory than is free.",
    remedy="Lower `[replica] keep_bytes`; `flowcheck plan job.toml` shows the sum line by line.",
)
AND_MEMORY = Entry("replica.and_memory", ", and the machine has {bytes:,} of memory")
MORE_HUGE_PAGES = Entry(
    "replica.more_huge_pages", ", more huge pages (scripts/hugepages reserve N)"
)
CPU_NOT_ALLOWED = Entry(
    "replica.cpu_not_allowed",
    "may be one of {cpus} here",
    remedy="State CPUs of that list; a service or `taskset` may allow fewer than the machine has.",
)

# Steps.

CLOSED = Entry(
    "replica.closed",
    "the replica is closed",
    cause="A part of FlowCheck used the replica after its end.",
    remedy=_MISTAKE,
)
STEP_DIFFERS = Entry(
    "replica.step_differs",
    "step {step} leads to the state {own} here, and to {other} where it came from",
    cause="The optimizer is not stated as it is there, or torch computes otherwise here.",
    remedy="State `[optimizer]` and `[model]` as the other chain does.",
)
STEP_IS_OVER = Entry(
    "replica.step_is_over",
    "this step was committed or given up",
    remedy="Begin it again.",
)
OTHER_OPTIMIZER = Entry(
    "replica.other_optimizer",
    "{path}: this replica was made with other optimizer settings",
    cause=_OTHER_SETTINGS,
    remedy="State the settings as they were, or begin anew: `flowcheck down{this_run!o}`, then "
    "`flowcheck up JOB.toml{this_run!o}`.",
)
OTHER_OPTIMIZER_THAN = Entry(
    "replica.other_optimizer_than",
    "{path}: this replica was made with other optimizer settings than {optimizer}",
    cause=_OTHER_SETTINGS,
    remedy="State the settings as they were, or begin anew: `flowcheck down{this_run!o}`, then "
    "`flowcheck up JOB.toml{this_run!o}`.",
)
OUT_OF_ORDER = Entry(
    "replica.out_of_order",
    "the replica is at step {step}, but got the gradients of step {given}",
    cause=_ORDER_BROKEN,
    remedy=_MISTAKE,
)
OTHER_SECTIONS = Entry(
    "replica.other_sections",
    "a base with the sections {sections} does not fit this replica",
    cause="The file holds other optimizer states than the stated optimizer has.",
    remedy="Correct `[optimizer]`, or give a checkpoint of this job.",
)
NOT_KEPT = Entry(
    "replica.not_kept",
    "step {step} is not kept (steps kept: {kept})",
    cause="Older steps give their room to newer ones.",
    remedy="Ask for one of those; a larger `[replica] keep_bytes` keeps more.",
)
TRAINER_ENDS = Entry(
    "replica.trainer_ends",
    "the trainer ends here: {error}",
    cause="The gradient's norm is infinite or NaN, and the trainer is stated to end then "
    "(clip_error_if_nonfinite).",
    remedy="Look at the trainer: it has ended as well. Restore an earlier step.",
)

# The log of digests.

OTHER_DIGEST_LOG = Entry(
    "digest_log.other_log",
    "{path}: not the trace of a replica of {tensors} tensors, or of another release "
    "(this one writes version {version})",
    remedy="Remove it, or use another run directory.",
)
NOT_A_DIGEST_LOG = Entry(
    "digest_log.not_one",
    "{path}: not a trace that this program reads",
    cause="The file is another one, or of another release.",
    remedy="Name the file that the trace wrote.",
)
DIGEST_COUNT = Entry(
    "digest_log.count",
    "{path}: {digests} digests for {tensors} tensors",
    cause="The file of digests is damaged, or of another job.",
    remedy="Write it again: run the trainer with the trace, or the replay with `--digests`.",
)

# The log of gradients.

LOG_NOT_WRITABLE = Entry(
    "gradient_log.not_writable",
    "cannot be written as {user}: {error}",
    remedy="Name a file in a folder of that user's.",
)
LOG_OUT_OF_ORDER = Entry(
    "gradient_log.out_of_order",
    "the log ends with iteration {last}, but got iteration {iteration}",
    cause=_ORDER_BROKEN,
    remedy=_MISTAKE,
)
LOG_CHANGED = Entry(
    "gradient_log.changed",
    "{path}: the gradient of record {record} was changed",
    cause="The log's file was changed, or the disk is faulty.",
    remedy="The steps behind it cannot be had: give the trainer's newest checkpoint with "
    "`flowcheck base FILE{this_run!o}`.",
)
OTHER_LOG = Entry(
    "gradient_log.other_log",
    "{path}: not a gradient log of this job",
    remedy="Remove it, or name another file.",
)

# The trainer's values of tainted elements.

PATCH_MISFIT = Entry(
    "replica.patch_misfit",
    "values of step {step} do not fit the replica, which is at step {at}: they must be of a step "
    "it has made and have each of the elements in the parameters and in every optimizer state",
    cause="The trainer's optimizer keeps other states than `[optimizer]` says, or the values are "
    "of another model.",
    remedy="Compare `[optimizer]` with the trainer's script.",
)
PATCH_REFUTED = Entry(
    "replica.patch_refuted",
    "values of step {step} are not of this replica's step: elements of {section} that no lost "
    "packet touched differ",
    cause="The values are of another step or another job, or the replica is not the trainer's.",
    remedy="Compare the replica with a checkpoint of the trainer: "
    "`flowcheck audit FILE{this_run!o}`.",
)
PATCH_NOT_FINITE = Entry(
    "replica.patch_not_finite",
    "values of step {step} heal nothing: of the tainted elements {section} holds one that is "
    "infinite or not a number, and nothing shows that the trainer had it",
    cause="A damaged copy of a checkpoint, or a training that has diverged.",
    remedy="Compare the file with another copy of it.",
)
PATCH_STEP_GONE = Entry(
    "replica.patch_step_gone",
    "the replica holds step {step} no longer, only {kept}: nothing shows that the values are of "
    "that step",
    remedy="State a larger `[replica] keep_bytes`, so that more steps stay.",
)
PATCH_STEPS_GONE = Entry(
    "replica.patch_steps_gone",
    "the tainted elements' gradients of the steps from {step} to {at} are not all kept, so the "
    "values of step {step} do not lead to step {at}",
    cause="The optimizer's steps are made by torch, which steps no single elements, or the record "
    "of them reached its limit.",
    remedy="Give a newer checkpoint of the trainer; or state `[gradient_log] taken_steps` before "
    "the next run and use `flowcheck base FILE{this_run!o}`.",
)
PATCH_HEALS_NOTHING = Entry(
    "replica.patch_heals_nothing",
    "no element that is tainted at step {at} is healed by values of step {step}: what they lack "
    "was lost later, or is healed already",
    remedy="Wait for a later checkpoint of the trainer.",
)
