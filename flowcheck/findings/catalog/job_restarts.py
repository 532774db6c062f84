"""A job that restarts, and the trainer's checkpoints that its replica goes on from."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Flows that appear after the job was learned.

LATE_FLOWS_LEFT_OUT = Entry(
    "restart.late_flows_left_out",
    "flows that appeared after the job was learned are not followed: {reasons}",
)
STAGING_FULL = Entry(
    "restart.staging_full", "three quarters of staging are full and no job is proved: {reasons}"
)
STILL_GOES_ON = Entry("restart.still_goes_on", "the job that is followed still goes on beside it")
LATE_FLOWS_OF_NO_JOB = Entry(
    "restart.late_flows_of_no_job",
    "{flows} flows that appeared later are of no job: they are not kept",
)

# Which step a later incarnation began with.

WENT_ON = Entry(
    "restart.went_on",
    "incarnation {number} of the job began with the parameters of step {step}: the replica goes on "
    "from there with its optimizer state",
)
WENT_BACK = Entry(
    "restart.went_back",
    "incarnation {number} of the job began with the parameters of step {step}: the replica goes "
    "back from step {newest} and goes on from there with its optimizer state",
)
ELEMENTS_HEALED = Entry(
    "restart.elements_healed",
    "{what}. Its {elements} tainted elements took the parameters that the incarnation began with "
    "and are exact again: the optimizer keeps nothing else of an element",
)
ELEMENTS_STAY_TAINTED = Entry(
    "restart.elements_stay_tainted",
    "{what}. Its {elements} tainted elements took the parameters that the incarnation began with "
    "and stay tainted: their optimizer state is not known",
    remedy="`flowcheck base FILE{this_run!o}` with a checkpoint that holds the optimizer's state, "
    "or `flowcheck audit --watch DIR{this_run!o}` on the folder of the trainer's checkpoints.",
)
VALUES_OF_EARLIER_INCARNATION = Entry(
    "restart.values_of_earlier_incarnation",
    "the values are of step {step} of incarnation {number} of the job, which is over: the one that "
    "is followed makes other steps",
    remedy="Wait for the next checkpoint of the trainer.",
)
NOT_FOLLOWED = Entry(
    "restart.not_followed", "a later incarnation of the job is not followed: {reason}"
)
WAITS_FOR_BASE = Entry(
    "restart.waits_for_base",
    "what a later incarnation of the job sends waits for a base: {reason}",
    remedy="Give the checkpoint that the trainer resumed from: `flowcheck base FILE{this_run!o}`.",
)
WAITS_FOR_TWO_CHECKPOINTS = Entry(
    "restart.waits_for_two_checkpoints",
    "what the job sends since waits for a base: {reason}",
    remedy="Give two checkpoints that the trainer writes from now on: `flowcheck base FILE --then "
    "LATER{this_run!o}`.",
)
REPLICA_KEPT = Entry(
    "restart.replica_kept", "{what}; the replica's step {step} is kept as {folder}"
)
OTHER_KIND = Entry(
    "restart.other_kind",
    "one incarnation reduces whole gradients, the other one shards them",
    cause="The job came back with another way of training in parallel.",
    remedy="`flowcheck down{this_run!o}` and `flowcheck up JOB.toml{this_run!o}` begin anew with "
    "the new job; the old replica is kept as a checkpoint.",
)
OTHER_PARAMETERS = Entry(
    "restart.other_parameters",
    "it has other parameters than the replica",
    cause="The job came back with another model.",
    remedy="`flowcheck down{this_run!o}` and `flowcheck up JOB.toml{this_run!o}` begin anew with "
    "the new job; the old replica is kept as a checkpoint.",
)
OTHERWISE_USED = Entry(
    "restart.otherwise_used",
    "find_unused_parameters or static_graph is not as before, so that other parameters may have no "
    "gradient",
    cause="The job came back with other settings of DistributedDataParallel.",
    remedy="Start the trainer as before, or `flowcheck down{this_run!o}` and `flowcheck up "
    "JOB.toml{this_run!o}` begin anew.",
)
REJOINED_AFTER_GAP = Entry(
    "restart.rejoined_after_gap",
    "it went on while some of it was not seen, and was joined again",
    cause="Steps passed that no mirror brought.",
    remedy="`flowcheck base FILE --then LATER{this_run!o}` with the trainer's next two "
    "checkpoints.",
)
START_NEVER_SENT = Entry(
    "restart.start_never_sent",
    "no weight that it began with crosses the network",
    cause="Under hybrid sharding (HSDP) nothing on the wire tells what a job resumed from.",
    remedy="`flowcheck base FILE{this_run!o}` with the checkpoint that the trainer resumed from.",
)
WEIGHTS_OF_NO_STEP = Entry(
    "restart.weights_of_no_step",
    "it began with parameters of no step that is kept ({steps}), so its optimizer state is not "
    "known",
)

# A base that a job waits for.

LOG_BEGUN_ANEW = Entry(
    "base.log_begun_anew",
    "the gradient log was full after {steps} steps and no base was given: they are given up, and "
    "it goes on from here",
    remedy="Make `[gradient_log]` larger: between two checkpoints of the trainer it must hold "
    "all steps.",
)
LOG_FULL = Entry(
    "base.log_full",
    "the gradient log is full after {steps} steps: later ones are not kept, and the replica will "
    "stop behind those",
    cause="No base came in time.",
    remedy="Give a base soon; a larger `[gradient_log]` for the next time.",
    section="loss",
)
NOT_LOGGED_ANY_MORE = Entry(
    "base.not_logged_any_more",
    "the step behind the base, {after} steps since the job was joined, is not logged any more",
    cause="The gradient log was full, or a step lacked bytes, since the base's place was found.",
    remedy="`flowcheck base FILE --then LATER{this_run!o}` with the trainer's two newest "
    "checkpoints.",
)
BASE_TAKEN = Entry(
    "base.taken",
    "{file} is the base of the job: the replica is at step {step}, and applies {logged} "
    "logged steps",
)

# A trainer's checkpoint that replaces the replica's state.

STATE_REPLACED = Entry(
    "anchor.state_replaced",
    "the replica goes on from step {step} of {file}, which differed from its own; {again} steps "
    "since are applied again",
)
STATE_DIFFERED = Entry(
    "anchor.state_differed",
    "at step {step} the replica differed from the trainer's {file}, and goes on from that: what "
    "made them differ may do so again",
    until_audit=True,
)
STATE_BRIDGED = Entry(
    "anchor.state_bridged",
    "the replica goes on from step {step} of {file}, for which it waited; {again} steps since were "
    "logged and are applied",
)
STATE_AWAITED = Entry(
    "anchor.state_awaited",
    "the state of step {step} is the trainer's {file}: a step before it lacked bytes that may "
    "matter to every element, so nothing was there to compare it with",
    until_audit=True,
)
STEP_BEFORE_LOSS = Entry(
    "anchor.step_before_loss",
    "the file is of step {step}, and step {lacking} lacks bytes that may matter to every element: "
    "its gradient cannot be applied to the file's state",
    cause="The trainer wrote the file before the step in which packets were lost.",
    remedy="Give a checkpoint of step {lacking} or a later one.",
)
STATE_REFUSED = Entry(
    "anchor.state_refused", "{file} does not replace the state of the replica: {reason}"
)
GRADIENTS_NOT_KEPT = Entry(
    "anchor.gradients_not_kept",
    "the replica is at step {step}, and not all gradients of steps {first} to {last} are kept, "
    "which would be applied again on this file",
    cause="The file is older than the gradients that are kept. One of the replica's own newest "
    "step needs none.",
    remedy="Give a newer checkpoint. `[gradient_log] taken_steps = N` keeps the gradients of the "
    "last N steps, for the next time.",
)
STEP_NOT_REACHED = Entry(
    "anchor.step_not_reached",
    "the replica is at step {at}: step {step} was not applied yet",
    cause="The trainer wrote the file before the replica had applied that step.",
    remedy="Give it again when `flowcheck status{this_run!o}` shows that step.",
)
STEP_BEFORE_JOB = Entry(
    "anchor.step_before_job",
    "the file is of step {step}, and what is followed of the job began with step {began}",
    cause="The file is older than what FlowCheck followed.",
    remedy="Give a checkpoint that the trainer wrote since then.",
)
STATE_NOT_KNOWN = Entry(
    "anchor.state_not_known",
    "the job's optimizer state is not known, or its logged steps are being applied",
    cause="A file replaces a state that is known, and no step is applied meanwhile.",
    remedy="Give it again when `flowcheck status{this_run!o}` shows applied steps.",
)
PARAMETERS_ONLY = Entry(
    "anchor.parameters_only",
    "the replica holds parameters as they are sent, which the next step sends anew",
    remedy="Nothing is to be done: no state of the trainer's has to be replaced.",
)
NORMS_NOT_KEPT = Entry(
    "anchor.norms_not_kept",
    "the other rings' norms of the steps since are not kept (clip_together)",
    cause="With `clip_together` each step needs the norms of all rings, and those are not kept.",
    remedy="Give a checkpoint of the replica's own newest step.",
)
