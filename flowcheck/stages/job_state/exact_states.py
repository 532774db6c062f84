"""The exact states that a replica has in memory, each with its digest, and the life of the training
job that they are of."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from flowcheck.errors import RingError
from flowcheck.replica.state_file.file_header import peek_digests, peek_tainted
from flowcheck.stages.job_state.audit_history import doubts_of
from flowcheck.stages.job_state.job_life import JobLife, life_of
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

STEPS_MAX = 64
"""Newest exact steps that are told. A choice: machines that are further apart have none in common
that memory still holds."""


class ExactStates(msgspec.Struct, frozen=True, kw_only=True):
    """Of one job of one chain."""

    steps: dict[Step, str] = {}
    """{step: digest of its state, in hex}, ascending: whole, not tainted, and no audit speaks
    against it."""
    life: JobLife | None = None
    """None: nobody knows."""


def exact_states(run: RunDir) -> ExactStates:
    """None of them while the state that the job began with is unknown, or it is just being followed
    to another life. Raises FlowCheckError."""
    with suppress(OSError, RingError):
        if not run.replica.exists() or incarnation_of(run).step is None:
            return ExactStates()
        life = life_of(run)
        tainted, digests = peek_tainted(run.replica), peek_digests(run.replica)
        if peek_tainted(run.replica) != tainted or life_of(run) != life:
            return ExactStates()
        newest = sorted(step for step in digests if step not in tainted)[-STEPS_MAX:]
        proved = {step: digests[step] for step in newest if not any(doubts_of(run, step))}
        return ExactStates(steps=proved, life=life)
    return ExactStates()
