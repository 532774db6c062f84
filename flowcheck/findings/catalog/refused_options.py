"""Options of the command line that contradict each other or are out of range."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

CHECK_NEEDS_MODEL = Entry(
    "option.check_needs_model",
    "captures can be compared with the plan of a model only, not with a job file",
    remedy="Give the function that returns the model: `flowcheck plan file.py:function CAPTURE "
    "--check --world N`.",
)
CHECK_NEEDS_CAPTURES = Entry(
    "option.check_needs_captures",
    "needs captures of the job",
    remedy="Give them after the model, or leave `--check` out.",
)
CAPTURES_NEED_CHECK = Entry(
    "option.captures_need_check",
    "captures are given, and nothing is to be compared with them",
    remedy="Add `--check`, or leave the captures out.",
)
BUCKET_SIZE = Entry(
    "option.bucket_size",
    "must be above 0 and below {most:,} MiB",
    remedy="State DDP's `bucket_cap_mb` of the trainer, or leave the option out: the default is "
    "torch's.",
)
MEMORY_SIZE = Entry(
    "option.memory_size",
    "must be 0 or more and below {most:,} GiB",
    remedy="State the memory in GiB that `flowcheck plan JOB.toml` prints, or leave the option "
    "out.",
)
STEP_OR_LATEST = Entry(
    "option.step_or_latest",
    "must be the number of a step, or latest",
    remedy="Give a step's number, or leave the option out: the default is latest.",
)
KILL_CONTRADICTS = Entry(
    "option.kill_contradicts",
    "contradicts {option}",
    remedy="Give one of them.",
)
LEFTOVERS_ALONE = Entry(
    "option.leftovers_alone",
    "is about no run",
    remedy="Give it without `--run` and `--discard`.",
)
JOBS_FROM_START = Entry(
    "option.jobs_from_start",
    "several jobs cannot be combined with --join-at or --gap-at: FlowCheck must see them "
    "from their start",
    remedy="Give `--jobs 1`, or leave those options out.",
)
JOBS_WITHOUT_SAVES = Entry(
    "option.jobs_without_saves",
    "several jobs cannot be combined with --save-every: their saves of a step would have one name",
    remedy="Give `--jobs 1`, or leave `--save-every` out.",
)
TREE_HOSTS = Entry(
    "option.tree_hosts",
    "trees need {least} hosts or more, or hosts of several GPUs",
    remedy="Raise `--hosts` or `--gpus-per-host`.",
)
NOT_A_PART = Entry(
    "option.not_a_part",
    "no such part",
    also=("parts",),
    remedy="Give one of {parts}, or leave the option out.",
)
ONE_SOURCE_OF_RATES = Entry(
    "option.one_source_of_rates",
    "cannot be combined with --measured-gbps or --gradient-bytes",
    remedy="Give one of them.",
)
CHECKPOINT_NEEDED = Entry(
    "option.checkpoint_needed",
    "the trainer's checkpoint is not named",
    also=("example",),
    remedy="Name it, a file or a folder: `{example}`.",
)
CHECKPOINT_TWICE = Entry(
    "option.checkpoint_twice",
    "is another one than the argument {checkpoint}",
    remedy="Name only one.",
)
