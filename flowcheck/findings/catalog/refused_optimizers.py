"""Optimizers that no replica can follow, or not with these settings."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

EVALUATES_AGAIN = Entry(
    "optimizer.evaluates_again",
    "cannot be followed: it evaluates the model again within a step, and those gradients are not "
    "sent",
    remedy="Train with an optimizer that takes one gradient a step.",
)
SPARSE_GRADIENTS = Entry(
    "optimizer.sparse_gradients",
    "cannot be followed: it takes sparse gradients, which are not reduced in the layout of the "
    "model's parameters",
    remedy="Train with an optimizer of dense gradients.",
)
NESTEROV_NEEDS_MOMENTUM = Entry(
    "optimizer.nesterov_needs_momentum",
    "needs a momentum above 0 and no dampening",
    remedy="State the values of the trainer's script: torch refuses this combination too.",
)
FUSED_MOMENTUM = Entry(
    "optimizer.fused_momentum",
    "torch's fused {optimizer} on a CPU reads the momentum of 2-byte parameters as 4-byte numbers, "
    "past the end of its buffer: its steps depend on foreign memory and differ from run to run",
    remedy='Train with `foreach=True` and state `implementation = "foreach"`.',
)

# Settings of [optimizer] that cannot be, or not together.

NAME_NEEDED = Entry(
    "optimizer.name_needed",
    "the optimizer never crosses the wire",
    also=("known",),
    remedy="State a class of torch.optim, such as {known}; or `factory = "
    '"train.py:make_optimizer"`, the function that makes it.',
)
NAME_NOT_STATED = Entry("optimizer.name_not_stated", "{needed}")
TABLE_NOT_NAME = Entry(
    "optimizer.table_not_name",
    "is a table, not a name",
    also=("known",),
    remedy='Write `[optimizer]`, and in the lines below `name = "adamw"` and `learning_rate = '
    "1e-4`; names are {known}.",
)
NOT_STATED = Entry(
    "optimizer.not_stated",
    "the optimizer never crosses the wire",
    remedy='State the trainer\'s in `[optimizer]`, such as `name = "adamw"` and `learning_rate '
    "= 1e-4`; or `[sharded]` if the training is sharded.",
)
STATED_BY_FACTORY = Entry(
    "optimizer.stated_by_factory",
    "optimizer.factory says it already",
    remedy="Leave it out.",
)
STATED_BY_EACH = Entry(
    "optimizer.stated_by_each",
    "[[optimizer.each]] says it for each optimizer",
    remedy="Leave it out of `[optimizer]`.",
)
ONE_GROUP_FOR_FROZEN = Entry(
    "optimizer.one_group_for_frozen",
    "needs an optimizer with one parameter group: of several, nothing shows which has the frozen "
    "parameters",
    cause="Frozen parameters take no gradient, and a group's settings could be theirs.",
    remedy="State one group, or leave frozen parameters out of the optimizer in the script.",
)
ROUNDS_MASTER_WEIGHTS = Entry(
    "optimizer.rounds_master_weights",
    "rounds master weights to parameters, and no master weights are stated",
    remedy="State `master_dtype` in `[optimizer]` too, or leave this key out.",
)
NO_GROUP_PARAMETERS = Entry(
    "optimizer.no_group_parameters",
    "the parameters of the group are not named",
    also=("rest",),
    remedy='Name them, or write "{rest}".',
)
TWO_TABLES_OF_REST = Entry(
    "optimizer.two_tables_of_rest",
    "only one table can have the rest",
    cause="Two tables have no `parameters`: both would take what is left.",
    remedy="State `parameters` in one of them.",
)
KEYS_DIFFER = Entry(
    "optimizer.keys_differ",
    "two of them have one key, or one has a key and another none",
    remedy="State a different key for each of them, or for none.",
)
LEARNING_RATE_NEEDED = Entry(
    "optimizer.learning_rate_needed",
    "it never crosses the wire",
    remedy="State the trainer's own, such as `learning_rate = 1e-4` in `[optimizer]`.",
)
HAS_NO_SETTING = Entry(
    "optimizer.has_no_setting",
    "{optimizer} has no {setting}",
    cause="The setting belongs to another optimizer.",
    remedy="Leave it out, or correct `[optimizer] name`.",
)
BETAS = Entry(
    "optimizer.betas",
    "must be from 0 to below 1",
    remedy="State the value of the trainer's script.",
)
CLIP_NORM_TYPE = Entry(
    "optimizer.clip_norm_type",
    "must be a number, or inf",
    remedy="State the value of the trainer's script.",
)
CLIP_VALUE_FIRST = Entry(
    "optimizer.clip_value_first",
    "is the order of clip_norm and clip_value, and they are not both stated",
    remedy="State both, or leave this key out.",
)
CLIP_WAIT = Entry(
    "optimizer.clip_wait",
    "must be a number of seconds above 0",
    remedy="Correct the value, or leave the key out to have its default.",
)
CLIP_ORDER_ALONE = Entry(
    "optimizer.clip_order_alone",
    "needs clip_together",
    remedy="State `clip_together` too, or leave `clip_order` out.",
)
NOT_WITH = Entry(
    "optimizer.not_with",
    "cannot be combined with {other}",
    cause="The two settings exclude each other in torch as well.",
    remedy="Leave out one of them: state what the script has.",
)
BACKOFF_FACTOR = Entry(
    "optimizer.backoff_factor",
    "must be above 0 and below 1",
    remedy="State the value of the trainer's script.",
)
CLIP_SCOPE = Entry(
    "optimizer.clip_scope",
    "with several jobs the norm may be of each job alone, or over all of them",
    remedy="State `clip_alone = true` if each job is clipped by its own norm, or `clip_together "
    "= true` if they are rings of one job, clipped by the norm over all, as Megatron-LM "
    "does.",
)
CLIP_OF_ONE_RING = Entry(
    "optimizer.clip_of_one_ring",
    "needs several rings of one job (jobs = N, same settings), but there is only one",
    cause="`clip_together` clips all rings of a job by one norm.",
    remedy="Leave `clip_together` out, or state `jobs`.",
)
CLIP_OF_OTHER_SETTINGS = Entry(
    "optimizer.clip_of_other_settings",
    "needs several rings of one job (jobs = N, same settings), but some have settings of their own",
    cause="`clip_together` clips all rings of a job by one norm, so all have one optimizer.",
    remedy="Leave the settings of the single `[[job]]` out, or `clip_together`.",
)
CLIP_ORDER = Entry(
    "optimizer.clip_order",
    "must name each of the {jobs} jobs once, by number, in the order in which the trainers' ranks "
    "sum their squares: the last bit of the norm depends on it",
    remedy="State the order of the trainer's script.",
)

# What this release of torch, or this model, does not take.

TORCH_REFUSES = Entry(
    "optimizer.torch_refuses",
    "torch refuses these settings: {error}",
    remedy="Correct `[optimizer]` as it says.",
)
CLASSES_LIKE_IT = Entry("optimizer.classes_like_it", "did you mean {names}?", between=" or ")
NO_CLASS_LIKE_IT = Entry("optimizer.no_class_like_it", "no name there is like it")
UNKNOWN_CLASS = Entry(
    "optimizer.unknown_class",
    "not a class of torch.optim in torch {torch} ({near}), which has {known}",
    cause="The name is misspelt, or of another release of torch.",
    remedy='Correct the name, or state `factory = "train.py:make_optimizer"` in `[optimizer]`, '
    "the function that makes an optimizer of another class.",
)
NO_IMPLEMENTATION = Entry(
    "optimizer.no_implementation",
    "torch's {optimizer} has no such implementation",
    remedy="State the implementation that the script uses, or leave it out.",
)
SAID_BY_IMPLEMENTATION = Entry(
    "optimizer.said_by_implementation",
    "is what optimizer.implementation says",
    cause="One fact would be stated twice.",
    remedy="Leave it out of `arguments`; state `implementation`.",
)
NOT_AN_ARGUMENT = Entry(
    "optimizer.not_an_argument",
    "is not an argument of torch's class; it takes {arguments}",
    remedy="Leave it out of `arguments`, or correct its name.",
)
STATED_ALREADY = Entry(
    "optimizer.stated_already",
    "is stated by {key} already",
    cause="One fact would be stated twice.",
    remedy="Leave it out of `arguments`.",
)
CLASS_HAS_NO_SETTING = Entry(
    "optimizer.class_has_no_setting",
    "torch's {optimizer} has no {setting}",
    cause="The setting belongs to another optimizer.",
    remedy="Leave it out, or correct `[optimizer] name`.",
)
HALF_UNSCALED = Entry(
    "optimizer.half_unscaled",
    "torch refuses to unscale gradients of float16",
    remedy="State `master_dtype` in `[optimizer]` where the script steps copies in float32.",
)
STATE_TYPE = Entry(
    "optimizer.state_type",
    "keeps {state} as {type}, neither a tensor nor a number",
    cause="FlowCheck stores tensors and numbers only.",
    remedy="Keep the state as a tensor in the optimizer's class.",
)
STATE_NAME_TAKEN = Entry(
    "optimizer.state_name_taken",
    "the optimizer calls a state {state}, a name that the replica uses for its own",
    remedy="Rename the state in the optimizer's class.",
)
IN_NO_TABLE = Entry(
    "optimizer.in_no_table",
    "is in no [[optimizer.each]]",
    remedy='State which optimizer steps it, for example by `parameters = "rest"` in one of the '
    "tables.",
)
NO_PARAMETER_LEFT = Entry(
    "optimizer.no_parameter_left",
    "has no parameter left",
    cause="Earlier tables already have all parameters.",
    remedy="Leave this table out, or correct the patterns before it.",
)
NAMES_NO_PARAMETER = Entry(
    "optimizer.names_no_parameter",
    "names no parameter of this model (its first is {first})",
    remedy="Correct `parameters`; `[model] names` or `factory` states the names.",
)
IN_TWO_TABLES = Entry(
    "optimizer.in_two_tables",
    "{name} is in another table already: each parameter is in one group",
    cause="Two tables of groups have patterns that both match it.",
    remedy="Correct `parameters` in one of the tables.",
)

# Learning-rate schedules.

NEEDS_METRIC = Entry(
    "schedule.needs_metric",
    "steps by a metric, which the wire does not carry",
    remedy="Use a schedule of steps alone; or follow the job, and give later checkpoints of the "
    "trainer (`flowcheck base FILE --then LATER{this_run!o}`).",
)
SKIPS_OF_SEVERAL = Entry(
    "schedule.skips_of_several",
    "of several optimizers a loss scale skips only those whose gradients have an inf or NaN, and "
    "FlowCheck does not know which of them the schedules follow: step the schedules after every "
    "iteration",
    cause="A skipped step may or may not step the schedules; nothing on the wire tells.",
    remedy="Step the schedules after every iteration in the script, and state "
    "`schedule_when_skipped`.",
)
SCHEDULE_UNKNOWN = Entry(
    "schedule.unknown",
    "torch {torch} has no such scheduler; it has {known}; a function of the script's own is named "
    '"file.py:function" or "package.module:function"',
    cause="The name is misspelt, or of another release of torch.",
    remedy="Correct the name, or name the script's own function.",
)
SCHEDULE_ARGUMENTS = Entry(
    "schedule.arguments",
    "torch refuses these arguments of {schedule}: {error}",
    cause="torch's scheduler does not take what is stated.",
    remedy="Compare `schedule_arguments` with the script.",
)
TAKES_A_NUMBER = Entry(
    "schedule.takes_a_number",
    "torch's {schedule} takes a number as {argument}",
    cause="The argument was given as text or as a list.",
    remedy="State a number in `schedule_arguments`.",
)
CANNOT_STEP = Entry(
    "schedule.cannot_step",
    "{schedules} cannot apply step {step} with these: {error}",
    cause="torch refuses to step the schedulers with the stated settings.",
    remedy="Compare `[optimizer] schedule` and the learning rate with the script.",
)
