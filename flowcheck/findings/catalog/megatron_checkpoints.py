"""Why a Megatron-LM folder is not read, or cannot be filled with a step."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_OTHER_MEGATRON = "The file is of another framework or of another job, or damaged."

# Reading.

SEVERAL_RANKS = Entry(
    "megatron.several_ranks",
    "{folder}: is of {ranks} model-parallel ranks; one is read",
    cause="The run splits the model over ranks.",
    remedy="Convert it to one rank with Megatron-LM's own tools, or restore with `--format torch`.",
)
RANKS_MISSING = Entry(
    "megatron.ranks_missing",
    "{folder}: holds the files of {found} of {ranks} model-parallel ranks",
    cause="The folder is incomplete: some ranks did not finish, or it was copied in part.",
    remedy="Give the folder that Megatron-LM's `--save` wrote, whole.",
)
NO_RANK_FILE = Entry(
    "megatron.no_rank_file",
    "{folder}: holds no {file}, and no {latest}",
    cause="The folder is incomplete, or of another layout of ranks.",
    remedy="Give the folder that Megatron-LM's `--save` wrote, whole.",
)
NO_ITERATION_NUMBER = Entry(
    "megatron.no_iteration_number",
    '{file}: {text} is not an iteration, and not "release"',
    cause=_OTHER_MEGATRON,
    remedy="Give the folder that Megatron-LM's `--save` wrote, or one `iter_` folder in it.",
)

# Filling an earlier checkpoint of the run (--like, --template).

NEEDS_LIKE = Entry(
    "megatron.needs_like",
    "this format is filled from an earlier checkpoint of the run: the args that its loader "
    "asserts, bounds of the schedule, random states and the optimizer's groups come from it",
    remedy="Name that checkpoint's folder with `--like FOLDER`, or its file with `--template "
    "FILE`.",
)
NO_ITERATION = Entry(
    "megatron.no_iteration",
    "{file}: holds no iteration: not a checkpoint of Megatron-LM",
    cause=_OTHER_MEGATRON,
    remedy="Give the folder that Megatron-LM's `--save` wrote.",
)
PIPELINE_STAGES = Entry(
    "megatron.pipeline_stages",
    "{file}: holds the models of several pipeline stages; a checkpoint with one model is filled",
    cause="The run splits the model over pipeline stages.",
    remedy="Restore with `--format torch`, and load that in the script.",
)
NO_OPTIMIZER = Entry(
    "megatron.no_optimizer",
    "{file}: holds no optimizer, or several: it cannot be filled",
    remedy="Name a checkpoint with one optimizer.",
)
NO_PARAMETER = Entry(
    "megatron.no_parameter",
    "{file}: its model has no {parameter}",
    cause=_OTHER_MEGATRON,
    remedy="Give a checkpoint of this job; `[model] names` states its names.",
)
OTHER_OPTIMIZER_FORM = Entry(
    "megatron.other_optimizer_form",
    "{file}: its optimizer does not hold state and param_groups as torch's do",
    cause="The run used another optimizer format, as the distributed one.",
    remedy="Save without `--use-distributed-optimizer`, or restore in another format.",
)
OTHER_GROUPS = Entry(
    "megatron.other_groups",
    "{file}: its optimizer has groups of [{sizes}] parameters, the job file states [{stated}]",
    remedy="State in `[[optimizer.groups]]` those of the run, or name a checkpoint of this run.",
)
STATE_NOT_KEPT = Entry(
    "megatron.state_not_kept",
    "{file}: {parameter}: the run's optimizer keeps {state}, the replica does not: the job file "
    "states another optimizer",
    cause="The job file states another optimizer than the trainer has.",
    remedy="Correct `[optimizer] name` and its settings.",
)
OTHER_MASTERS = Entry(
    "megatron.other_masters",
    '{file}: {masters} differ from the replica\'s: [optimizer] master_dtype = "float32" states '
    "that the run steps copies of its parameters",
    cause="The run keeps copies of its parameters in float32, and the job file does not say so, "
    "or the other way round.",
    remedy="Correct `[optimizer] master_dtype`.",
)
