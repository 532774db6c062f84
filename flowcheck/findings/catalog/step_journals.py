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
    "{folder}: step {step} is left out, as {bytes:,} bytes wait for the disk: later steps can be "
    "made again from the next saved checkpoint on",
    cause="The disk takes gradients more slowly than the job sends them.",
    remedy="Put `[gradient_log] folder` on a faster disk.",
)
JOURNAL_NO_ROOM = Entry(
    "journal.no_room",
    "{folder}: step {step} could not be written ({error}): later steps can be made again from the "
    "next saved checkpoint on",
    remedy="Make room on that file system, or lower `[gradient_log] folder_bytes`.",
)
JOURNAL_GOES_ON = Entry("journal.goes_on", "{folder}: steps are written again, from step {step} on")
JOURNAL_UNREADABLE = Entry(
    "journal.unreadable",
    "{file}: the gradient of step {step} is not there, or not whole",
    cause="The machine died before the disk had it, or the file was damaged since.",
    remedy="Restore an earlier step: `--step N`.",
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
    "{last}",
    remedy="Leave out `--step` for the last step that it leads to.",
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
