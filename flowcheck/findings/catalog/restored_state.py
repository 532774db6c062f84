"""What a restored checkpoint has of its step: what `flowcheck restore --template` fills in and what
it leaves, and why a trainer does not go on from it as if nothing had happened."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_UNKNOWN_BYTES = (
    "Packets of these elements' gradients or initial weights were lost, or copies of them differ; "
    "the replica applied the rest."
)
NAMES = Entry("resume.names", "{names}")
NAMES_AND_MORE = Entry("resume.names_and_more", "{names} and {more} more")

# What is not of the step, or not there.

NO_OPTIMIZER_STATE = Entry(
    "resume.no_optimizer_state",
    "parameters of step {step} and no optimizer state",
    cause="The wire carries no optimizer state of this job.",
)
EARLIER_OPTIMIZER_STATE = Entry(
    "resume.earlier_optimizer_state",
    "parameters of step {step} beside an optimizer state of step {optimizer_step}",
    cause="The wire carries no optimizer state of this job; the template's is kept.",
)
ROUNDED = Entry(
    "resume.rounded", "{parameters} parameters are rounded to the type they are sent in"
)
EARLIER_PARAMETERS = Entry(
    "resume.earlier_parameters", "{parameters} parameters are of earlier steps"
)
TAINTED_ELEMENTS = Entry(
    "resume.tainted",
    "{elements:,} of {all:,} elements ({percent:g} %) rest on bytes that are not known, since "
    "step {since}, in {parameters}; all others are exact",
    cause=_UNKNOWN_BYTES,
    remedy="While the chain runs, `flowcheck audit --watch DIR{this_run!o}` on the folder of the "
    "trainer's checkpoints makes them exact by the next file, `flowcheck base FILE{this_run!o}` by "
    "the newest one; after its end, restore the newest exact step.",
)
MODEL_TAINTED = Entry(
    "resume.model_tainted",
    "{elements:,} of the model's {all:,} elements ({percent:g} %) rest on bytes that are not "
    "known, since step {since}, in {jobs}; {exact}",
    cause=_UNKNOWN_BYTES,
    remedy="While the chain runs, `flowcheck audit --watch DIR{this_run!o}` on the folder of the "
    "trainer's checkpoints makes each job's elements exact by its next file; after its end, "
    "restore the newest exact step.",
)
PART_TAINTED = Entry(
    "resume.part_tainted",
    "{elements:,} elements of the model rest on bytes that are not known, since step {since}, "
    "in {jobs}; not every job's part is known yet; {exact}",
    cause=_UNKNOWN_BYTES,
    remedy="While the chain runs, `flowcheck audit --watch DIR{this_run!o}` on the folder of the "
    "trainer's checkpoints makes each job's elements exact by its next file; after its end, "
    "restore the newest exact step.",
)
EXACT_IN_ALL = Entry(
    "resume.exact_in_all", "step {step} is the newest one kept that is exact in all of it"
)
NOT_EXACT_IN_ALL = Entry("resume.not_exact_in_all", "no step that is kept is exact in all of it")
BUFFERS_OF_STEP = Entry("resume.buffers_of_step", "{buffers} buffers are of step {step}")
TEMPLATE_BUFFERS = Entry(
    "resume.template_buffers",
    "{buffers} buffers are the template's own, of step {template_step} and NOT of step {step}: "
    "{names}",
    remedy="Use a newer template, or state the model (`[model] factory`).",
)
BUFFERS_MISSING = Entry("resume.buffers_missing", "{count} buffers are missing: {names}")
TENSORS_MISSING = Entry(
    "resume.tensors_missing", "{count} tensors without gradients are missing: {names}"
)
PARAMETERS_ALONE = Entry(
    "resume.parameters_alone", "parameters alone: a trainer goes on with a new optimizer"
)
NO_MODEL_CONFIG = Entry(
    "resume.no_model_config", "no config.json (--like FOLDER passes one through)"
)
STATES_TO_COME = Entry(
    "resume.states_to_come",
    "{parameters} parameters have no optimizer state yet: a loader that makes one before it reads "
    "must allow it to be missing (DefaultLoadPlanner(allow_partial_load=True))",
)
EARLIER_OPTIMIZER = Entry(
    "resume.earlier_optimizer", "optimizer state and schedule are of step {step}"
)
EARLIER_PARTS = Entry("resume.earlier_parts", "{parts} are of step {step}")
EARLIER_LOSS_SCALE = Entry("resume.earlier_loss_scale", "the loss scale is of step {step}")
EARLIER_HYSTERESIS = Entry(
    "resume.earlier_hysteresis", "the hysteresis of the loss scale is of step {step}"
)
EARLIER_SAMPLE_COUNTS = Entry(
    "resume.earlier_sample_counts",
    "the counts of samples and the schedule are of step {step}: args hold no constant batch size",
)

# What is assumed.

TENSORS_STAY = Entry(
    "resume.tensors_stay",
    "steps never change these tensors without gradients: {names} ({tensors} in all): the "
    "trainer's files of steps {steps} hold the same values (no model is stated)",
)
TENSORS_UNKNOWN = Entry(
    "resume.tensors_unknown",
    "steps never change these tensors without gradients: {names} ({tensors} in all): they are "
    "the template's, of step {step}, and nothing else showed them (no model is stated; an "
    "audit of a file of another step tells, or restore with --also FILE)",
    remedy="`flowcheck audit FILE{this_run!o}` with a file of another step, or restore again with "
    "`--also FILE`.",
)
COUNTER_FROM_ZERO = Entry(
    "resume.counter_from_zero",
    "{counter} counts optimizer steps: it is 0 in the template, as every counter of step 0 is",
)
RATE_UNKNOWN = Entry(
    "resume.rate_unknown", "the learning rate of the next step is not known: {error}"
)

PARAMETERS = Entry("filled.parameters", "{count} parameters")
OPTIMIZER_STATE = Entry("filled.optimizer_state", "optimizer state ({states}), learning rate")
NO_STATES = Entry("filled.no_states", "none")
BUFFERS = Entry("filled.buffers", "{count} buffers of the model")
SCHEDULER = Entry("filled.scheduler", "a learning-rate scheduler")
LOSS_SCALE = Entry("filled.loss_scale", "the loss scale")
MASTERS = Entry("filled.masters", "masters")
AVERAGES = Entry("filled.averages", "moving averages")
COUNTER = Entry("filled.counter", "{name} = {value}")

OTHER_COUNTER = Entry("unfilled.counter", "{name} = {value} (not the step {step})")
COUNTER_LEFT = Entry("unfilled.counter_of_template", "{name} = {value}")
OPTIMIZER_LEFT = Entry(
    "unfilled.optimizer_state", "optimizer state and learning rate, of step {step}"
)
SCHEDULER_LEFT = Entry("unfilled.scheduler", "a learning-rate scheduler, of step {step}")
KEY_LEFT = Entry("unfilled.key", "{key}")
