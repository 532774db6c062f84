"""Why a DeepSpeed folder is not read, or cannot hold a step."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_OTHER_DEEPSPEED = (
    "The file is of another framework, or of a kind of DeepSpeed checkpoint that is not read."
)
_WHOLE_DEEPSPEED = (
    "The checkpoint is incomplete: some ranks did not finish, or it was copied in part."
)

# Reading.

MODEL_PARALLEL = Entry(
    "deepspeed.model_parallel",
    "{folder}: is of several model-parallel ranks or of ZeRO stage 3; one model-parallel rank and "
    "stages 0 to 2 are read",
    cause="Several ranks hold parts of the model, or of its parameters (ZeRO 3).",
    remedy="Convert it with DeepSpeed's script `zero_to_fp32`, and give what that writes.",
)
MODEL_PARALLEL_SHARD = Entry(
    "deepspeed.model_parallel_shard",
    "{file}: is of several model-parallel ranks; one is read",
    cause="Several ranks hold parts of the model.",
    remedy="Convert it with DeepSpeed's script `zero_to_fp32`, and give what that writes.",
)
MODEL_STATES_MISSING = Entry(
    "deepspeed.model_states_missing",
    "{folder}: holds the model of {found} of {ranks} model-parallel ranks",
    cause=_WHOLE_DEEPSPEED,
    remedy="Copy the whole folder again, or give an earlier tag.",
)
NO_MODULE = Entry(
    "deepspeed.no_module",
    "{file}: holds no module, or no global_steps: not a DeepSpeed checkpoint",
    cause=_OTHER_DEEPSPEED,
    remedy="Give the folder that DeepSpeed's `save_checkpoint` wrote.",
)
NO_TAG = Entry(
    "deepspeed.no_tag",
    "{folder}: holds no {file}, and no {latest} that names a tag",
    cause=_WHOLE_DEEPSPEED,
    remedy="Give the folder of one tag, or copy the whole folder again.",
)
NO_DICTIONARY = Entry(
    "deepspeed.no_dictionary",
    "{file}: holds no dictionary",
    cause=_OTHER_DEEPSPEED,
    remedy="Give the folder that DeepSpeed's `save_checkpoint` wrote.",
)
RANKS_MISSING = Entry(
    "deepspeed.ranks_missing",
    "{folder}: holds the optimizer shards of ranks {ranks}; those between are missing",
    cause=_WHOLE_DEEPSPEED,
    remedy="Copy the whole folder again, or give an earlier tag.",
)
OTHER_STAGE = Entry(
    "deepspeed.other_stage",
    "{file}: is not of ZeRO stage 1 or 2",
    cause=_OTHER_DEEPSPEED,
    remedy="Train with ZeRO stage 1 or 2, or give a checkpoint of the model alone.",
)
SHARDS_MISSING = Entry(
    "deepspeed.shards_missing",
    "{folder}: holds the optimizer shards of {found} of {ranks} ranks",
    cause=_WHOLE_DEEPSPEED,
    remedy="Copy the whole folder again, or give an earlier tag.",
)
SHARDS_DO_NOT_FIT = Entry(
    "deepspeed.shards_do_not_fit",
    "{folder}: its shards do not fit together: {error}",
    cause=_WHOLE_DEEPSPEED,
    remedy="Copy the whole folder again, or give an earlier tag.",
)
SHARDS_TOO_SHORT = Entry(
    "deepspeed.shards_too_short",
    "{folder}: {parameter}: the shards hold {elements} elements, too few for it",
    cause=_WHOLE_DEEPSPEED,
    remedy="Copy the whole folder again, or give an earlier tag.",
)

# Writing.

NO_OPTIMIZER_STATE = Entry(
    "deepspeed.no_optimizer_state",
    "the step has no optimizer state, and ZeRO's shards hold nothing else",
    remedy="Write it with `--zero 0`.",
)
OTHER_STEP_IN_GROUP = Entry(
    "deepspeed.other_step_in_group",
    "{parameter}: its optimizer state is not at the step of {first}, and ZeRO keeps one "
    "step for a whole group",
    remedy="Write it with `--zero 0`.",
)
OTHER_STATE_SHAPE = Entry(
    "deepspeed.other_state_shape",
    "{parameter}/{state}: ZeRO keeps states of the parameter's shape only",
    remedy="Write it with `--zero 0`.",
)
NO_FLOAT32_MASTER = Entry(
    "deepspeed.no_float32_master",
    "{parameter}: ZeRO keeps a float32 master, and the replica has none",
    remedy="Write it with `--zero 0`.",
)
