"""The hook in the trainer, which is asked for values of tainted elements."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_LOOK = (
    "Look at the trainer's stderr: the hook says there where it listens. Compare that with the "
    "`address` in `[hook]`."
)

HOOK_UNREACHABLE = Entry(
    "hook.unreachable",
    "the hook at {address} is not reached: {error}",
    cause="The trainer runs without the hook, has ended, or listens elsewhere.",
    remedy=_LOOK,
)
HOOK_PROTOCOL = Entry(
    "hook.protocol",
    "who listens at {address} gave no answer that this token proves: {error}",
    cause="The trainer has another token, or ends just now; or something else listens there.",
    remedy="Where the trainer goes on, give both sides the same token: `token_file` in `[hook]` "
    "here, FLOWCHECK_HOOK_TOKEN_FILE or `--token-file` there.",
)
HOOK_REFUSES = Entry(
    "hook.refuses",
    "the hook at {address} does not tell the values: {reason}",
    cause="The trainer's optimizers or its model are none that single elements can be read of.",
    remedy="Give a checkpoint of the trainer: `flowcheck base FILE{this_run!o}`.",
)
HOOK_TOKEN = Entry(
    "hook.token",
    "{file} holds no token for the hook: {error}",
    remedy="Write the trainer's token into it, 16 bytes or more.",
)
HOOK_OTHER_MODEL = Entry(
    "hook.other_model",
    "the hook's trainer has another model: {parameter} is {own} here and {theirs} there",
    cause="The hook belongs to another job.",
    remedy="State the address of this job's trainer in `[hook]`.",
)
HOOK_OTHER_STATE = Entry(
    "hook.other_state",
    "the hook's trainer keeps another optimizer state than the replica: {state}",
    cause="`[optimizer]` is not the trainer's.",
    remedy="Compare `[optimizer]` with the trainer's script.",
)
HOOK_STEP_UNKNOWN = Entry(
    "hook.step_unknown",
    "the hook's values fit none of the steps {steps}: {reason}",
    cause="The trainer's steps are counted from another step than the replica's.",
    remedy="Give a checkpoint of the trainer: `flowcheck base FILE{this_run!o}`.",
)
HOOK_OTHER_JOB = Entry(
    "hook.other_job",
    "the hook at {address} answers for another job: elements that no lost packet touched are not "
    "this replica's in any step that its values may be of ({steps})",
    cause="It is another trainer's. Or it is this job's, and the replica is not its state, or its "
    "steps are counted from another step than the replica's.",
    remedy="State the address of this job's trainer in `[hook]`. If it is this one, compare the "
    "replica with a checkpoint of the trainer: `flowcheck audit FILE{this_run!o}`.",
)
