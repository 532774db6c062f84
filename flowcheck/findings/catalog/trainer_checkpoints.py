"""Why a trainer's checkpoint does not fit the replica, or the job as the job file states it."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_OTHER_JOB_FILE = "The file is of another job, or the job file states another model or optimizer."
_CORRECT_JOB_FILE = "Give a file of this job, or correct `[model]` and `[optimizer]`."
_FROM_SCRIPT = "Compare `[optimizer]` with the training script."

# The model.

NO_MODEL = Entry(
    "trainer_checkpoint.no_model",
    "{file}: holds no model of {parameters} parameters in the job's shapes (the first is "
    "[{shape}], {dtype})",
    cause=_OTHER_JOB_FILE,
    remedy=_CORRECT_JOB_FILE,
)
SEVERAL_MODELS = Entry(
    "trainer_checkpoint.several_models",
    "{file}: {models} of its dictionaries fit the model, and nothing tells which is the trainer's",
    remedy="State `names` in `[model]` of the job file, or name a file that holds one model.",
)
AMBIGUOUS_PARAMETERS = Entry(
    "trainer_checkpoint.ambiguous_parameters",
    "{file}: the model's tensors fit the parameters in more than one way: each of {names} may be a "
    "parameter or a buffer",
    cause="Buffers or frozen weights of the same shapes are among the model's tensors.",
    remedy="State the parameters' names as `names` in `[model]` of the job file, or give a file "
    "that holds the trainable parameters only.",
)
OTHER_SHAPE = Entry(
    "trainer_checkpoint.other_shape",
    "{tensor}: has shape [{shape}] in the trainer's checkpoint, [{own_shape}] in the replica",
    cause=_OTHER_JOB_FILE,
    remedy=_CORRECT_JOB_FILE,
)
OTHER_DTYPE = Entry(
    "trainer_checkpoint.other_dtype",
    "{tensor}: is {dtype} in the trainer's checkpoint, {own_dtype} in the replica",
    cause="The trainer holds it in another type than the job file states.",
    remedy="Correct `[model] dtype`, or state `[optimizer] master_dtype`.",
)
OTHER_TYPE_OR_SHAPE = Entry(
    "trainer_checkpoint.other_type_or_shape",
    "{tensor}: is {dtype} [{shape}] in the trainer's checkpoint, {own_dtype} [{own_shape}] in the "
    "replica",
    cause="The file is of another model, or of another data type.",
    remedy="Name a checkpoint of this job and this model.",
)
NOT_ONE_NUMBER = Entry(
    "trainer_checkpoint.not_one_number",
    "{tensor}: has shape [{shape}] in the trainer's checkpoint, and is one number in the replica",
    cause=_OTHER_JOB_FILE,
    remedy=_CORRECT_JOB_FILE,
)

# Its step.

STEP_NOT_TOLD = Entry(
    "trainer_checkpoint.step_not_told",
    "{file}: nothing in it tells at which step it was written: it holds no step counter",
    cause="The trainer saved no optimizer state, or an optimizer that does not count.",
    remedy="State the step: `--step N`, as the trainer's log has it.",
)
STEPS_DIFFER = Entry(
    "trainer_checkpoint.steps_differ",
    "{file}: nothing in it tells at which step it was written: its step counters differ ({steps})",
    cause="Parameters were stepped a different number of times, as unused ones are.",
    remedy="State the step: `--step N`, as the trainer's log has it.",
)
OTHER_STEP = Entry(
    "trainer_checkpoint.other_step",
    "the trainer's checkpoint is of step {step}, the replica is at step {at}",
    remedy="Give the trainer's checkpoint of the replica's step, or audit when the replica is "
    "there.",
)
RECORD_OF_OTHER_SETTINGS = Entry(
    "trainer_checkpoint.record_of_other_settings",
    "the record of that step has {tensors} tensors, which no replica with these optimizer settings "
    "has",
    cause="The job file was changed since that step.",
    remedy="State `[optimizer]` as it was, or audit a newer step.",
)

# The optimizer's parameters.

SEVERAL_OPTIMIZERS = Entry(
    "trainer_checkpoint.several_optimizers",
    "{file}: holds {optimizers} optimizers, and the job file states one: [[optimizer.each]], or a "
    "factory that returns several, tells which parameters are of which",
    cause=_OTHER_JOB_FILE,
    remedy="State each optimizer: `[[optimizer.each]]`.",
)
OTHER_OPTIMIZER_COUNT = Entry(
    "trainer_checkpoint.other_optimizer_count",
    "{file}: holds {optimizers} optimizers, the job file states {stated}",
    cause=_OTHER_JOB_FILE,
    remedy="State each optimizer: `[[optimizer.each]]`.",
)
TOO_MANY_OPTIMIZERS = Entry(
    "trainer_checkpoint.too_many_optimizers",
    "{file}: holds {optimizers} optimizers; at most {limit} are supported",
    cause="The file has more optimizers than FlowCheck takes.",
    remedy="Restore with `--format torch`, and load them in the script.",
)
OPTIMIZERS_DO_NOT_FIT = Entry(
    "trainer_checkpoint.optimizers_do_not_fit",
    "{file}: its optimizers do not have the parameters that the job file states",
    cause=_OTHER_JOB_FILE,
    remedy=_FROM_SCRIPT,
)
OPTIMIZERS_DO_NOT_FIT_AS = Entry(
    "trainer_checkpoint.optimizers_do_not_fit_as",
    "{file}: its optimizers do not have the parameters that the job file states ({why})",
    cause=_OTHER_JOB_FILE,
    remedy=_FROM_SCRIPT,
)
OPTIMIZERS_ALIKE = Entry(
    "trainer_checkpoint.optimizers_alike",
    "{file}: its {optimizers} optimizers have equally many parameters of the same shapes, and "
    "nothing in it tells which is which",
    cause="Their parameters cannot be told apart by shape.",
    remedy="State names in `[model] names`, so that they are told by name.",
)
OTHER_PARAMETER_COUNT = Entry(
    "trainer_checkpoint.other_parameter_count",
    "{file}: its optimizer has {parameters} parameters, the replica {own}",
    remedy="If it has frozen ones, name a file of a later step: an optimizer keeps no state of "
    "those, so that file tells which they are. Otherwise name a checkpoint of this job.",
)
NO_OPTIMIZER_PARAMETER = Entry(
    "trainer_checkpoint.no_optimizer_parameter",
    "{file}: its optimizer has no parameter {parameter}",
    cause=_OTHER_JOB_FILE,
    remedy=_CORRECT_JOB_FILE,
)
ONE_OPTIMIZER = Entry(
    "trainer_checkpoint.one_optimizer",
    "{file}: holds one optimizer, the job file states several",
    cause=_OTHER_JOB_FILE,
    remedy=_FROM_SCRIPT,
)
ONE_OPTIMIZER_STATED = Entry(
    "trainer_checkpoint.one_optimizer_stated",
    "{file}: holds several optimizers, the job file states one",
    cause=_OTHER_JOB_FILE,
    remedy="State each optimizer: `[[optimizer.each]]`.",
)
OTHER_ORDER = Entry(
    "trainer_checkpoint.other_order",
    "{file}: {state} of the optimizer's parameter {number} has shape [{shape}], {parameter} has "
    "[{own_shape}]: its order is not the model's",
    cause="The optimizer got its parameters in another order than the model has them.",
    remedy="State their groups in that order: `[[optimizer.groups]]`.",
)
SEVERAL_GROUPS = Entry(
    "trainer_checkpoint.several_groups",
    "{file}: its optimizer has {groups} parameter groups, and the job file states one: "
    "[[optimizer.groups]] tells which parameter is of which",
    cause=_OTHER_JOB_FILE,
    remedy="State each group: `[[optimizer.groups]]`.",
)
OTHER_GROUP_COUNT = Entry(
    "trainer_checkpoint.other_group_count",
    "the template's optimizer has {groups} parameter groups, the job file states {stated}",
    cause=_OTHER_JOB_FILE,
    remedy="State each group: `[[optimizer.groups]]`.",
)

# The optimizer's state, and what is kept beside it.

OTHER_STATES = Entry(
    "trainer_checkpoint.other_states",
    "{parameter}: the trainer's optimizer keeps {states}, the replica's {own}: the job file states "
    "another optimizer",
    cause=_OTHER_JOB_FILE,
    remedy="Correct `[optimizer] name` and its settings.",
)
STATE_NOT_KEPT = Entry(
    "trainer_checkpoint.state_not_kept",
    "{parameter}/{state}: the trainer's optimizer does not keep this state",
    cause=_OTHER_JOB_FILE,
    remedy="Correct `[optimizer] name` and its settings.",
)
NO_MASTERS = Entry(
    "trainer_checkpoint.no_masters",
    "the file holds no float32 masters of the trainer's, and without them its next steps "
    "cannot be computed",
    remedy="Name one that holds them.",
)
NO_AVERAGES = Entry(
    "trainer_checkpoint.no_averages",
    "the file holds no moving averages of the trainer's, and without them its next steps "
    "cannot be computed",
    remedy="Name one that holds them.",
)
NO_LOSS_SCALE = Entry(
    "trainer_checkpoint.no_loss_scale",
    "the file holds no loss scale of the trainer's (scaler.state_dict()), and without it "
    "its next steps cannot be computed",
    remedy="Name one that holds it.",
)
PARAMETER_NOT_AVERAGED = Entry(
    "trainer_checkpoint.parameter_not_averaged",
    "the moving averages have no {parameter}",
    cause="The file's averages are of a part of the parameters.",
    remedy="Give the file of averages that belongs to this model.",
)
SEVERAL_LOSS_SCALES = Entry(
    "trainer_checkpoint.several_loss_scales",
    "the file holds {found} loss scales, and nothing tells which is the trainer's",
    remedy="Give a file that holds one of them, as the trainer saves it for one model.",
)
SEVERAL_MASTERS = Entry(
    "trainer_checkpoint.several_masters",
    "the file holds {found} lists of masters, and nothing tells which is the trainer's",
    remedy="Give a file that holds one of them, as the trainer saves it for one model.",
)
SEVERAL_AVERAGES = Entry(
    "trainer_checkpoint.several_averages",
    "the file holds {found} sets of moving averages, and nothing tells which is the trainer's",
    remedy="Give a file that holds one of them, as the trainer saves it for one model.",
)

# The learning-rate schedule.

UNKNOWN_SCHEDULER = Entry(
    "trainer_checkpoint.unknown_scheduler",
    "{path}: a learning-rate scheduler that does not keep its state as LambdaLR does: its state "
    "after other steps cannot be computed",
    cause="The scheduler is of the script's own class.",
    remedy="Give a template of the very step that is restored, or restore with `--format torch`.",
)
SEQUENTIAL_SCHEDULE = Entry(
    "trainer_checkpoint.sequential_schedule",
    "the template holds a schedule of several (SequentialLR), whose state after other "
    "steps cannot be computed from the file alone",
    remedy="State `factory` in `[optimizer]`, the function that makes it.",
)
AMBIGUOUS_SCHEDULES = Entry(
    "trainer_checkpoint.ambiguous_schedules",
    "{schedules} of the stated schedules have the state of one in the template, and nothing tells "
    "of which optimizer it is",
    cause="Several schedules are alike in the template.",
    remedy="Restore with `--format torch`, and load the schedules in the script.",
)
NO_SCHEDULE_HAS_STATE = Entry(
    "trainer_checkpoint.no_schedule_has_state",
    "no stated schedule has the state of one in the template at its step: the job file states "
    "another schedule",
    cause="The stated schedule gives other numbers at that step.",
    remedy="Compare `[optimizer] schedule` with the script.",
)
OTHER_SCHEDULE = Entry(
    "trainer_checkpoint.other_schedule",
    "the scheduler has taken {taken} steps at step {step}, and {stated} as stated "
    "(optimizer.schedule_every): the job file states another schedule",
    cause=_OTHER_JOB_FILE,
    remedy="Correct `schedule` and `schedule_every` in `[optimizer]`.",
)
SCHEDULE_NOT_IN_STEP = Entry(
    "trainer_checkpoint.schedule_not_in_step",
    "the scheduler has taken {taken} steps and the optimizer {step}: a schedule that does not step "
    "with the optimizer cannot be restored",
    cause="Steps were skipped, or the script steps the schedule at other times.",
    remedy="State `schedule_every` and `schedule_when_skipped` as the script has it.",
)
