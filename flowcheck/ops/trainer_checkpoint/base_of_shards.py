"""`flowcheck base` for all shards of a model (hybrid sharding): one checkpoint of the whole model
becomes the state of all replicas, or of none.

Every shard's part is proved before the first replica changes. What an updater says then is not
known before, and a command may be killed between two shards: so a record stands on disk meanwhile
(`given_to_shards`), which `status` tells, and with which no step of all shards is restored. The
same command once more ends it: a shard that has the checkpoint is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from flowcheck.errors import StateError
from flowcheck.findings.catalog.base_checkpoints import FILE_REFUSED
from flowcheck.findings.catalog.hybrid_jobs import HAS_CHECKPOINT, OF_SHARD
from flowcheck.findings.catalog.run_directories import ANOTHER_REQUEST
from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import print_line
from flowcheck.ops.trainer_checkpoint import replica_reset
from flowcheck.ops.trainer_checkpoint.audit_command import append_base_line
from flowcheck.ops.trainer_checkpoint.base_proof import (
    NO_POSITION,
    BaseCheckpoint,
    LogPosition,
    await_taken,
    knows_state,
    proved_base,
    submit_proved,
)
from flowcheck.stages.job_state.given_to_shards import (
    GivenToShards,
    forget_given,
    given_to_shards,
    record_given,
)
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.checkpoint_io import read
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate


@dataclass(frozen=True, slots=True)
class _Proved:
    """A shard's part of the checkpoint, which nothing that is known before speaks against."""

    run: RunDir
    base: BaseCheckpoint | None = None
    """The state that its job began with, for which it waits."""
    template: CheckpointTemplate | None = None
    """The state in place of the one that it has."""

    @property
    def step(self) -> Step | None:
        """None: it has the checkpoint already."""
        template = self.base.template if self.base is not None else self.template
        return None if template is None else template.step


def base_shards(
    runs: Sequence[RunDir], file: Path, place: LogPosition = NO_POSITION, *, as_json: bool
) -> int:
    """Gives each shard its part, and prints a report. runs: [shard]. Returns the exit code. Raises
    StateError where the part of a shard is refused; before any replica has changed, if that could
    be known."""
    step, why = give_to_shards(runs, file, place)
    if as_json:
        result = {"step": step, "file": str(file), "run": str(runs[0].root), "shards": len(runs)}
        print(json.dumps(result))
    else:
        print_line(f"step {step} of {file} is the base of all {len(runs)} shards: {why}")
    return 0


def give_to_shards(
    runs: Sequence[RunDir], file: Path, place: LogPosition = NO_POSITION
) -> tuple[Step, Finding]:
    """(step, why it is the state of the first shard that took it now). Raises as
    `base_shards`."""
    tree, earlier = read(file), given_to_shards(runs)
    proved = [_proved(n, runs, file, place, tree, earlier) for n in range(len(runs))]
    steps = [one.step for one in proved if one.step is not None]
    if not steps:
        assert earlier is not None, "nothing else says that a shard has the checkpoint"
        forget_given(runs)
        return earlier.step, HAS_CHECKPOINT(earlier.file)
    given = GivenToShards(
        file=str(file),
        step=steps[0],
        lives=tuple(incarnation_of(own).number for own in runs),
        waited=tuple(n for n, one in enumerate(proved) if one.base is not None),
        taken=tuple(n for n, one in enumerate(proved) if one.step is None),
    )
    if earlier is not None and earlier.file == given.file:
        given = replace(given, waited=tuple(sorted({*given.waited, *earlier.waited})))
    record_given(runs, given)
    return given.step, _give(runs, file, proved, given, fresh=earlier is None)


def _give(
    runs: Sequence[RunDir],
    file: Path,
    proved: Sequence[_Proved],
    given: GivenToShards,
    *,
    fresh: bool,
) -> Finding:
    """Gives each shard its part, and notes who has it. Updaters whose jobs wait for a base take
    theirs even if this command ends right after it asked them. fresh: no command was killed that
    had asked one before."""
    requests: dict[int, str] = {}
    told: list[Finding] = []
    try:
        for n, one in enumerate(proved):
            if one.base is not None:
                requests[n] = submit_proved(one.run, one.base)
        for n, one in enumerate(proved):
            if one.base is not None:
                await_taken(one.run, requests[n])
                append_base_line(one.run, one.base.template.step, file)
                told.append(one.base.why)
            elif one.template is not None:
                told.append(replica_reset.replace_by(one.run, one.template, file))
            given = replace(given, taken=tuple(sorted({*given.taken, n})))
            record_given(runs, given)
    except StateError as error:
        none = fresh and not requests and not given.taken
        if none and error.finding.is_any_of(FILE_REFUSED, ANOTHER_REQUEST):
            forget_given(runs)  # no replica has changed
        raise
    forget_given(runs)
    return told[0]


def _proved(
    shard: int,
    runs: Sequence[RunDir],
    file: Path,
    place: LogPosition,
    tree: Any,
    earlier: GivenToShards | None,
) -> _Proved:
    """tree: what is in the file; earlier: what was given before and is not finished. Raises
    StateError, of that shard."""
    own = runs[shard]
    if _has(shard, own, file, earlier):
        return _Proved(own)
    try:
        if knows_state(own) and place == NO_POSITION:
            template = replica_reset.proved_template(own, file, tree)
            replica_reset.state_sections(own, template)  # all of it is there
            return _Proved(own, template=template)
        return _Proved(own, base=proved_base(own, file, place, tree))
    except StateError as error:
        raise StateError(OF_SHARD(shard=shard, why=error.finding)) from error


def _has(shard: int, own: RunDir, file: Path, earlier: GivenToShards | None) -> bool:
    """Whether a command that was killed had given it this checkpoint: as it noted, or as the
    updater did, which took what it was asked to."""
    if earlier is None or earlier.file != str(file):
        return False
    answered = shard in earlier.waited and incarnation_of(own).base == earlier.step
    return shard in earlier.taken or answered
