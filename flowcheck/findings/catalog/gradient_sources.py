"""Gradients that a replica is stepped from and that no connection of a job brought."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NOT_A_SOURCE_RECORD = Entry(
    "gradients.not_a_source_record",
    "{file} does not name the gradient logs that a replica is stepped from: {error}",
)
OTHER_GRADIENTS = Entry(
    "gradients.other_gradients",
    "{file} is no gradient log of {bytes:,} bytes an iteration, which is what this model's "
    "gradients take",
)
LOG_GAP = Entry(
    "gradients.log_gap",
    "the gradient logs go on with iteration {iteration} behind iteration {last}: what is between "
    "is in none of them, and the replica stays where it is",
)
LOG_CHANGED = Entry(
    "gradients.log_changed",
    "the gradient of iteration {iteration} in {file} is not what was written: the replica stays at "
    "the step before it",
)
LOG_CLOSED = Entry(
    "gradients.log_closed",
    "the gradient log ends with iteration {last}, as there was no room for more: the replica stays "
    "at that step",
)
