"""Gradients that a replica is stepped from and that no connection of a job brought."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NOT_A_SOURCE_RECORD = Entry(
    "gradients.not_a_source_record",
    "{file} does not name the gradient logs that a replica is stepped from: {error}",
    cause="The record that names the gradient logs is damaged, or another release wrote it.",
    remedy="Write it again with the release of FlowCheck that runs here.",
)
OTHER_GRADIENTS = Entry(
    "gradients.other_gradients",
    "{file} is no gradient log of {bytes:,} bytes an iteration, which is what this model's "
    "gradients take",
    cause="The log was written for another model, or with another gradient type.",
    remedy="Name the logs of this model, or correct `[model]` in the job file.",
)
LOG_GAP = Entry(
    "gradients.log_gap",
    "the gradient logs go on with iteration {iteration} behind iteration {last}: what is between "
    "is in none of them, and the replica stays where it is",
    cause="A file of the log is missing.",
    remedy="Add the log with those iterations, or restore the step before.",
)
LOG_CHANGED = Entry(
    "gradients.log_changed",
    "the gradient of iteration {iteration} in {file} is not what was written: the replica stays at "
    "the step before it",
    cause="The log's file was changed, or the disk is faulty.",
    remedy="Copy the log again from where it was written, or restore the step before.",
)
LOG_CLOSED = Entry(
    "gradients.log_closed",
    "the gradient log ends with iteration {last}, as there was no room for more: the replica stays "
    "at that step",
    cause="The log had no room for more.",
    remedy="Restore that step; a larger `[gradient_log] file_bytes` keeps more.",
)
