"""Which life of the training job the states of a replica are of, as far as its chain can tell: what
`flowcheck fleet restore` compares before it puts shards of several chains together."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

COPY_LIFE = "copy-life.json"


class JobLife(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a training job, as one chain counts them. All states of a replica's present past
    are of its life or of what that began with."""

    number: int
    """From 1, with each restart that was followed (Incarnation.number)."""
    origin: Step
    """The step that it began with, as the chain counts steps (Incarnation.step)."""
    base: Step | None = None
    """The step of the trainer's checkpoint that told the chain where it is; None: it has followed
    the job since the job's start."""


def life_of(run: RunDir) -> JobLife | None:
    """That the replica's present states are of. Of a copy: the one that it was told with its newest
    change. None: nobody knows. Raises FlowCheckError, OSError."""
    if run.config.exists() and run.settings().gradients is not None:
        with suppress(OSError, *DECODE_ERRORS):
            text = (run.root / COPY_LIFE).read_bytes()
            return msgspec.json.decode(text, type=JobLife | None)
        return None
    return life_of_chain(run)


def life_of_chain(run: RunDir) -> JobLife | None:
    """The same for a chain that captures. Its replica goes back before its record names the next
    life, so that a state read between two equal answers is of this one."""
    followed = incarnation_of(run)
    if followed.step is None:
        return None
    return JobLife(number=followed.number, origin=followed.step, base=followed.base)


def write_copy_life(run: RunDir, life: JobLife | None) -> None:
    """Of a copy, before it takes a change that is of that life. Raises OSError."""
    write_atomically(run.root / COPY_LIFE, msgspec.json.encode(life), durable=False)
