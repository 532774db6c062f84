"""A checkpoint of a whole model that is being given to the replicas of all its shards (hybrid
sharding).

The record is on disk before the first replica changes, and goes once all of them have the
checkpoint. While it is there, some may stand on it and others not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.findings.catalog.hybrid_jobs import BASE_UNFINISHED
from flowcheck.findings.finding import Finding
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

NAME = "request-of-shards.json"
"""In `learned/` of the first shard, of which no history keeps what waits for an updater."""


class GivenToShards(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoint, and who has taken it."""

    file: str
    step: Step
    lives: tuple[int, ...]
    """[shard] number of the incarnation that it was given to."""
    waited: tuple[int, ...] = ()
    """Shards whose jobs waited for a base then."""
    taken: tuple[int, ...] = ()
    """Shards that have it."""


def record_given(runs: Sequence[RunDir], given: GivenToShards) -> None:
    """Puts the record on disk. runs: [shard]. Raises OSError if there is no room."""
    write_atomically(_place(runs), msgspec.json.encode(given))


def forget_given(runs: Sequence[RunDir]) -> None:
    """Every shard has the checkpoint, or none of them."""
    _place(runs).unlink(missing_ok=True)


def given_to_shards(runs: Sequence[RunDir]) -> GivenToShards | None:
    """The record; None where there is none, or a shard follows a later life of the job, which
    begins with a checkpoint of its own. Raises msgspec.MsgspecError where it is damaged."""
    try:
        given = msgspec.json.decode(_place(runs).read_bytes(), type=GivenToShards)
    except FileNotFoundError:
        return None
    lives = tuple(incarnation_of(own).number for own in runs)
    return given if given.lives == lives else None


def unfinished(runs: Sequence[RunDir]) -> Finding | None:
    """That some shards may stand on a checkpoint and others not; None: no checkpoint is being
    given."""
    given = given_to_shards(runs)
    if given is None:
        return None
    return BASE_UNFINISHED(
        file=given.file, step=given.step, taken=len(given.taken), shards=len(runs)
    )


def _place(runs: Sequence[RunDir]) -> Path:
    return runs[0].learned_folder / NAME
