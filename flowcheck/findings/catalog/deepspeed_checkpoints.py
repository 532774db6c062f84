"""Why a DeepSpeed folder is not read, or cannot hold a step."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Reading.

MODEL_PARALLEL = Entry(
    "deepspeed.model_parallel",
    "{folder}: is of several model-parallel ranks or of ZeRO stage 3; one model-parallel rank and "
    "stages 0 to 2 are read",
)
MODEL_PARALLEL_SHARD = Entry(
    "deepspeed.model_parallel_shard",
    "{file}: is of several model-parallel ranks; one is read",
)
NO_MODULE = Entry(
    "deepspeed.no_module", "{file}: holds no module, or no global_steps: not a DeepSpeed checkpoint"
)
NO_TAG = Entry("deepspeed.no_tag", "{folder}: holds no {file}, and no {latest} that names a tag")
NO_DICTIONARY = Entry("deepspeed.no_dictionary", "{file}: holds no dictionary")
RANKS_MISSING = Entry(
    "deepspeed.ranks_missing",
    "{folder}: holds the optimizer shards of ranks {ranks}; those between are missing",
)
OTHER_STAGE = Entry("deepspeed.other_stage", "{file}: is not of ZeRO stage 1 or 2")
SHARDS_MISSING = Entry(
    "deepspeed.shards_missing", "{folder}: holds the optimizer shards of {found} of {ranks} ranks"
)
SHARDS_DO_NOT_FIT = Entry(
    "deepspeed.shards_do_not_fit", "{folder}: its shards do not fit together: {error}"
)
SHARDS_TOO_SHORT = Entry(
    "deepspeed.shards_too_short",
    "{folder}: {parameter}: the shards hold {elements} elements, too few for it",
)

# Writing.

NO_OPTIMIZER_STATE = Entry(
    "deepspeed.no_optimizer_state",
    "the step has no optimizer state, and ZeRO's shards hold nothing else: write it with --zero 0",
)
OTHER_STEP_IN_GROUP = Entry(
    "deepspeed.other_step_in_group",
    "{parameter}: its optimizer state is not at the step of {first}, and ZeRO keeps one step for "
    "a whole group: write it with --zero 0",
)
OTHER_STATE_SHAPE = Entry(
    "deepspeed.other_state_shape",
    "{parameter}/{state}: ZeRO keeps states of the parameter's shape only: write it with --zero 0",
)
NO_FLOAT32_MASTER = Entry(
    "deepspeed.no_float32_master",
    "{parameter}: ZeRO keeps a float32 master, and the replica has none: write it with --zero 0",
)
