"""How the replica of a learned job is made and updated: refused, assumed, contradicted."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# The job file does not fit the job.

OPTIMIZER_NOT_STATED = Entry(
    "replica.optimizer_not_stated",
    "the job reduces whole gradients, and the job file states no optimizer: it never crosses the "
    "wire, state the trainer's in [optimizer]",
    cause="Nothing on the wire tells the optimizer.",
    remedy="State the trainer's optimizer in `[optimizer]`.",
    section="learning",
)
CLIP_TOGETHER_TYPE = Entry(
    "replica.clip_together_type",
    "[optimizer] clip_together needs gradients of 4 bytes an element, and the buckets have others: "
    "the wire does not tell in which type their squares are summed",
    cause="The type in which the trainers sum the squares never crosses the wire.",
    remedy="Train with float32 gradients, or without clipping over all rings.",
)
STATED_TYPE_SIZE = Entry(
    "replica.stated_type_size",
    "[model] {key} = {value} has elements of {bytes} bytes, and those of the start-up "
    "broadcast have {sizes}",
    remedy="Correct `{key}`, or leave it out.",
)
TYPE_OPEN = Entry(
    "replica.type_open",
    "elements of 2 bytes may be bfloat16 or float16, and the frames do not show which",
    remedy='State in `[model]`: `dtype = "bfloat16"` (or "float16").',
)
TYPES_OPEN = Entry(
    "replica.types_open",
    "parameters of several dtypes, of {sizes} bytes an element: the 2-byte ones may be bfloat16 "
    "or float16, and the frames do not show which",
    also=("dtypes",),
    remedy='State in `[model]`: `dtypes = {dtypes}` (or "float16").',
)
GRADIENT_TYPE_OPEN = Entry(
    "replica.gradient_type_open",
    "gradients are reduced in {bytes} bytes an element, the parameters have others: the "
    "wire does not tell into which type a hook compresses them",
    remedy='State `gradient_dtype` in `[model]`: "float16" (fp16_compress_hook) or "bfloat16" '
    "(bf16_compress_hook).",
)
GRADIENT_TYPE_SIZE = Entry(
    "replica.gradient_type_size",
    "[model] gradient_dtype = {value} has elements of {bytes} bytes, and those of the "
    "buckets have {sizes}: no hook compresses them so",
    remedy="Leave `gradient_dtype` out.",
)
GATHERED_SIZE = Entry(
    "replica.gathered_size",
    "an iteration gathered {bytes} bytes, and the parameters have {expected}",
    cause="The stated model is another one, or a part of its parameters is gathered elsewhere.",
    remedy="Correct `[sharded] factory` and `[model] dtype`.",
)

# The job file's model, and what is followed in its place.

SHARDED_TRAINING = Entry(
    "replica.sharded_training",
    "the job's training is sharded, for which [model] says nothing: [sharded] factory does",
)
PARAMETER_COUNT = Entry(
    "replica.parameter_count",
    "the stated model has {stated} parameters, the trainers sent {sent}: theirs are followed",
)
PARAMETER_SHAPE = Entry(
    "replica.parameter_shape",
    "parameter {parameter} of the stated model is {stated} of {stated_bytes} bytes, the trainers "
    "sent {sent} of {sent_bytes} bytes: theirs is followed",
)
WHOLE_GRADIENTS = Entry(
    "replica.whole_gradients",
    "[sharded] is stated, and the trainers sum whole gradients in a ring of {ranks} ranks, as "
    "DistributedDataParallel does: these are followed, and [sharded] is left aside",
)
WHOLE_STATE = Entry(
    "replica.whole_state",
    "the trainers sum whole gradients in a ring of {ranks} ranks, and [optimizer] states what "
    "steps them: parameters and the optimizer's state are followed",
)
NAME_COUNT = Entry(
    "replica.name_count",
    "[model] names has {names} names for {parameters} parameters: they are called param.0, "
    "param.1, ... instead",
)

# Rings that are clipped by one norm.

NORM_AWAITED = Entry(
    "replica.norm_awaited",
    "step {step} waits for job {job}: all rings are clipped by one norm (clip_together), and the "
    "norm of that job's gradients is not known yet",
)
NORM_NEVER_COMES = Entry(
    "replica.norm_never_comes",
    "step {step} is whole, but not in job {job}, and all rings are clipped by one norm "
    "(clip_together): it is given up, and the replica stays before it",
    cause="Another ring lost the step.",
    remedy="`flowcheck base FILE --then LATER{this_run!o}` for each job, with the trainer's next "
    "two checkpoints.",
)
NORM_WAIT_OVER = Entry(
    "replica.norm_wait_over",
    "step {step} waited {seconds} s for job {job} (clip_wait_s), and all rings are clipped by one "
    "norm: it is given up, and the replicas of all of them stay before it until the job comes back",
    cause="Another ring's step did not come in time.",
    remedy="See that job in `flowcheck status{this_run!o}`; a longer `clip_wait_s` in "
    "`[optimizer]` waits longer.",
)
NORM_WAIT_OVER_ELSEWHERE = Entry(
    "replica.norm_wait_over_elsewhere",
    "step {step}: another ring has waited too long for a norm (clip_wait_s), and all are clipped "
    "by one: the replica stays before it",
    cause="Another ring's step did not come in time.",
    remedy="See the other jobs in `flowcheck status{this_run!o}`; a longer `clip_wait_s` in "
    "`[optimizer]` waits longer.",
)
NORMS_IN_JOB_ORDER = Entry(
    "replica.norms_in_job_order",
    "the trainers sum the squares of the rings' norms in the order of the jobs' numbers: of some "
    "steps the last bit depends on it, optimizer.clip_order states it",
    until_audit=True,
)

# What the replica rests on.

LOSS_SCALE_CONTRADICTED = Entry(
    "replica.loss_scale_contradicted",
    "the gradients contradict the stated loss scale ([optimizer.scaler]), and with it the steps "
    "that were applied",
    cause="Scaled gradients do not look as the stated scale has it.",
    remedy="Correct the scaler's settings, and give a base.",
    section="replica",
)
LOSS_SCALE_CONTRADICTED_BY = Entry(
    "replica.loss_scale_contradicted_by",
    "the gradients contradict the stated loss scale ([optimizer.scaler]), and with it the steps "
    "that were applied: {evidence}",
)
EMPTY_STATE = Entry(
    "replica.empty_state",
    "the trainer's optimizer had no state when its start-up was seen",
    until_audit=True,
)
ASSUMED_UNREADABLE = Entry(
    "replica.assumed_unreadable",
    "{file} is damaged ({error}): what else the state rests on is not known",
    until_audit=True,
)
BASE_FITS = Entry(
    "replica.base_fits", "which of the logged gradients follows the base", until_audit=True
)
UNUSED_LEFT_OUT = Entry(
    "replica.unused_left_out",
    "gradients are None where no rank used a parameter (zero_grad(set_to_none=True), torch's "
    "default): from step {step} on parameters used before were left out",
    until_audit=True,
)
GATHERED_FLOAT32 = Entry(
    "replica.gathered_float32",
    "gathered parameters are float32: the wire does not tell in which type they are sent",
    remedy="State `dtype` in `[model]`, or `[sharded]`.",
)
UNITS_IN_MODULE_ORDER = Entry(
    "replica.units_in_module_order",
    "units of one size are gathered in the order of the model's modules",
)
SHARDED_LAYOUT = Entry(
    "replica.sharded_layout",
    "where each parameter lies in what is gathered rests on [sharded] and its factory, until an "
    "audit passes",
)

# Tainted elements that the trainer's values replace.

START_LACKS_BYTES = Entry(
    "replica.start_lacks_bytes",
    "bytes of the initial weights are not known: {what}",
    cause="The mirror, or the way from it, lost packets of the start-up broadcast, which comes but "
    "once, or copies of one differ.",
    remedy="`flowcheck base FILE{this_run!o}` with a checkpoint of the trainer, its folder as "
    "`[audit]`, or the hook make them exact.",
)

ELEMENTS_HEALED = Entry(
    "replica.elements_healed",
    "{elements} tainted elements of the parameters are exact again at step {at}, by the trainer's "
    "values of step {step} ({source}); {left} were tainted still then",
)
HEALING_REFUSED = Entry(
    "replica.healing_refused", "values from {source} heal no tainted element: {reason}"
)
