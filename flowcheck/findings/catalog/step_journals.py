"""Findings about the step journal (`[gradient_log] folder`), and about steps made again from it."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

JOURNAL_TOO_SMALL = Entry(
    "journal.too_small",
    "{folder}: {size_bytes:,} bytes hold too few steps, so none are kept there; {needed:,} are "
    "needed",
    remedy="Raise `[gradient_log] folder_bytes`.",
)
JOURNAL_BEHIND = Entry(
    "journal.behind",
    "{folder}: step {step} is not kept, as earlier ones still wait for the disk: later steps can "
    "be made again from the next saved checkpoint on",
    cause="The disk takes gradients more slowly than the job sends them.",
    remedy="Put `[gradient_log] folder` on a faster disk.",
)
JOURNAL_ENTRY_TOO_LARGE = Entry(
    "journal.entry_too_large",
    "{folder}: the change of step {step} is not kept, as its {bytes:,} bytes are more than a "
    "gradient's or its ranges too many: later steps can be made again from the next saved "
    "checkpoint on",
)
JOURNAL_NO_MEMORY = Entry(
    "journal.no_memory",
    "{folder}: no steps are kept there, as {file} cannot have {size_bytes:,} bytes: {error}",
    remedy="Lower `keep_bytes` of `[replica]`, or give the chain more shared memory.",
)
JOURNAL_STOPPED = Entry(
    "journal.stopped",
    "{folder}: nothing is kept there any more, as what writes it failed: {error}",
)
JOURNAL_LEFT_WAITING = Entry(
    "journal.left_waiting",
    "{folder}: at the end {count} entries waited for the disk, from step {step} on; they are lost "
    "unless the updater starts again",
)
JOURNAL_NOT_SHARDED = Entry(
    "journal.not_sharded",
    "{folder}: no steps are kept there, as steps of sharded training bring whole parameters",
    remedy="Save more often: `[persist] every_steps`.",
)
JOURNAL_NO_ROOM = Entry(
    "journal.no_room",
    "{folder}: step {step} is not kept, as it could not be written ({error}): later steps can "
    "be made again from the next saved checkpoint on",
    remedy="Make room on that file system, or lower `[gradient_log] folder_bytes`.",
)
JOURNAL_GOES_ON = Entry("journal.goes_on", "{folder}: steps are kept again, from step {step} on")
JOURNAL_FIGURES = Entry(
    "journal.figures",
    "{folder} keeps what the replica took of steps {first} to {last}, {size_bytes:,} bytes",
)
JOURNAL_KEEPS_NONE = Entry("journal.keeps_none", "{folder} keeps no steps")
JOURNAL_NOT_KEPT = Entry("journal.not_kept", "{kept}; {count} changes are not kept")
JOURNAL_UNREADABLE = Entry(
    "journal.unreadable",
    "{file}: the gradient of step {step} is not there, or not whole",
    cause="The machine died before the disk had it, or the file was damaged since.",
    remedy="Restore an earlier step: `--step N`.",
)
JOURNAL_FOLDER_UNREADABLE = Entry(
    "journal.folder_unreadable",
    "{folder}: cannot be read as a folder of gradients: {error}",
    remedy="Name the folder that `[gradient_log] folder` of the job file names, as a user that may "
    "read it.",
)
JOURNAL_LEADS_NOWHERE = Entry(
    "journal.leads_nowhere",
    "{folder} has no step that follows step {step} of {checkpoint}: {held}",
    cause="The folder is of another job, its steps behind the checkpoint were dropped for newer "
    "ones, or some could not be written.",
    remedy="Take a newer checkpoint, or raise `[gradient_log] folder_bytes` so that it holds the "
    "steps between two saves.",
)
JOURNAL_HOLDS = Entry("journal.holds", "it holds steps {first} to {last}")
JOURNAL_EMPTY = Entry("journal.empty", "it holds no steps")
JOURNAL_ENDS = Entry(
    "journal.ends",
    "step {step} cannot be made again: from step {base} of {checkpoint}, {folder} leads to step "
    "{last}; {why}",
    remedy="Leave out `--step` for the last step that it leads to, or name a newer checkpoint.",
)
JOURNAL_BEFORE_SAVE = Entry(
    "journal.before_save",
    "step {step} cannot be made again: it lies before step {first}, the earliest that is saved in "
    "{checkpoint}",
    cause="Gradients lead from a saved step to later ones, and to no earlier one.",
    remedy="Name an older checkpoint with `--checkpoint`, of step {step} or before, or ask for "
    "step {first} or a later one.",
)
JOURNAL_NOT_REACHED = Entry(
    "journal.not_reached",
    "{folder} holds steps {steps} too, which cannot be made again from {checkpoint}: {why}",
    cause="Bytes of the folder are missing or damaged: steps before them are whole.",
    remedy="A checkpoint that was saved behind that leads to them: `--checkpoint`.",
)
JOURNAL_MORE = Entry(
    "journal.more",
    "{folder} leads on to step {last}, which is exact",
    also=("checkpoint",),
    remedy="`flowcheck restore --checkpoint {checkpoint!q} --gradients {folder!q} --format torch "
    "--out restored.pt` makes it again.",
)
JOURNAL_BROKEN = Entry(
    "journal.broken",
    "what follows step {last} is missing or damaged, and what is kept again begins with step "
    "{step}",
)
JOURNAL_NO_MORE = Entry("journal.no_more", "nothing behind it is kept")
JOURNAL_GAP = Entry(
    "journal.gap", "changes behind it are not kept, and what is kept again begins with step {step}"
)
JOURNAL_NONE_SINCE = Entry("journal.none_since", "changes behind it are not kept")
JOURNAL_OTHER_STATE = Entry(
    "journal.other_state",
    "there a checkpoint of the trainer became the replica's state of step {to}",
)
JOURNAL_GIVEN_UP = Entry(
    "journal.given_up",
    "NOT proved exact: behind step {at} a checkpoint of the trainer of step {to} took the place of "
    "what the replica had, and step {step} is of the past that it ended",
    section="replica",
    cause="The replica's state of the checkpoint's step was not the trainer's, or was not held any "
    "more. Which earlier steps were wrong too, an audit alone tells.",
    remedy="Restore from a checkpoint that was saved behind that, or resume from the trainer's own "
    "file.",
)
JOURNAL_TAINTED_LATE = Entry(
    "journal.tainted_late",
    "NOT proved exact: copies of step {since} turned out to differ behind step {to}, and "
    "{elements:,} elements of step {step}, which was saved before that, rest on them",
    section="replica",
    cause="Two mirror ports, or a frame sent twice, brought other bytes: something on the way "
    "changed them.",
    remedy="Name a checkpoint that was saved before step {since}; `--step N` behind step {step} "
    "with `--allow-tainted` names the elements.",
)
JOURNAL_TAINTED_BEHIND_GAP = Entry(
    "journal.tainted_behind_gap",
    "NOT proved exact: the folder lacks changes, among or behind which elements turned out to be "
    "tainted since step {since}: step {step} may have them",
    section="replica",
    cause="Copies of a step differed, and a full disk or a lack of shared memory kept that, or "
    "what came before it, out of the folder.",
    remedy="Take a step before step {since}, or a checkpoint that was saved later.",
)
JOURNAL_REPLACED = Entry(
    "journal.replaced",
    "behind step {step} in {folder} a checkpoint of the trainer became the replica's state of step "
    "{to}: no later step follows from {checkpoint}",
    remedy="Name a checkpoint that was saved behind that. `--step N` gives a step before it; where "
    "the replica was wrong, only with `--despite-audit`.",
)
JOURNAL_DIFFERS = Entry(
    "journal.differs",
    "step {step} was made again from {folder}, and is not what the replica had: its digest differs",
    cause="The processor or the version of torch is another one, or the files were changed.",
    remedy="Restore on the machine that wrote it, or restore the saved checkpoint alone.",
)
JOURNAL_BASE_DIFFERS = Entry(
    "journal.base_differs",
    "step {step} of {checkpoint} has not the digest that its manifest says, once it is a replica",
    remedy="Restore it without `--gradients`.",
)
JOURNAL_NEEDS_STATE = Entry(
    "journal.needs_state",
    "{checkpoint} holds parameters alone, or tainted elements: no later step can be made from it",
    remedy="Name a checkpoint with the optimizer's state in which nothing is tainted.",
)
