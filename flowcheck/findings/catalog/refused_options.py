"""Options of the command line that contradict each other or are out of range."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

CHECK_NEEDS_MODEL = Entry(
    "option.check_needs_model",
    "captures can be compared with the plan of a model only, not with a job file: give the "
    "function that returns the model",
)
CHECK_NEEDS_CAPTURES = Entry(
    "option.check_needs_captures", "needs captures of the job: give them after the model"
)
CAPTURES_NEED_CHECK = Entry(
    "option.captures_need_check", "needed if captures are given: add --check, or leave them out"
)
LEFTOVERS_ALONE = Entry(
    "option.leftovers_alone",
    "is about no run: give it without --run and --discard",
)
BUCKET_SIZE = Entry("option.bucket_size", "must be above 0 and below {most:,} MiB")
MEMORY_SIZE = Entry("option.memory_size", "must be 0 or more and below {most:,} GiB")
STEP_OR_LATEST = Entry("option.step_or_latest", "must be the number of a step, or latest")
KILL_CONTRADICTS = Entry("option.kill_contradicts", "contradicts {option}: give one of them")
JOBS_FROM_START = Entry(
    "option.jobs_from_start",
    "several jobs cannot be combined with --join-at or --gap-at: FlowCheck must see them from "
    "their start",
)
TREE_HOSTS = Entry("option.tree_hosts", "trees need {least} hosts or more: raise --hosts")
NOT_A_PART = Entry("option.not_a_part", "must be one of {parts}")
ONE_SOURCE_OF_RATES = Entry(
    "option.one_source_of_rates",
    "cannot be combined with --measured-gbps or --gradient-bytes: give one of them",
)
CHECKPOINT_NEEDED = Entry(
    "option.checkpoint_needed", "name the trainer's checkpoint, a file or a folder: `{example}`"
)
CHECKPOINT_TWICE = Entry(
    "option.checkpoint_twice", "is another one than the argument {checkpoint}: name only one"
)
