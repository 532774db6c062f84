"""`flowcheck restore` of all shards of a model (hybrid sharding): one DCP checkpoint of the whole,
at a step that the replicas of all shards have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.hybrid_jobs import (
    ALL_SHARDS,
    ONE_SHARD,
    SHARD_SAVED_BEFORE,
    SHARDS_AS_DCP,
    SHARDS_OF_LIVES,
    SHARDS_TAINTED,
)
from flowcheck.findings.catalog.refused_restores import NOT_WITH_OPTION
from flowcheck.findings.finding import Finding
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.single_step_restore import RestoredStep, refuse_doubted
from flowcheck.ops.restore.step_lookup import FoundStep, newest_step
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.audit_history import audit_history_of, doubt_among
from flowcheck.stages.job_state.given_to_shards import unfinished
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.checkpoint_formats.checkpoint_io import write_shards
from flowcheck.vault.checkpoint_formats.dcp_shards import FORM, ModelShard
from flowcheck.vault.checkpoint_formats.format_registry import SHARD_FORMATS
from flowcheck.vault.overwrite_guard import OutputTarget


def check_form(request: RestoreRequest, shards: int) -> None:
    """Raises StateError, ConfigError for what is not written of all shards together."""
    if request.form != FORM:
        told = request.form or ("a template" if request.templates else "no format")
        raise StateError(SHARDS_AS_DCP(shards=shards, form=told, formats=SHARD_FORMATS))
    if request.templates:
        raise ConfigError("--format", FORM, NOT_WITH_OPTION("--template"))
    if request.options.like is not None:
        raise ConfigError("--like", str(request.options.like), NOT_WITH_OPTION("--format dcp"))


def write_all_shards(
    request: RestoreRequest, target: OutputTarget, runs: Sequence[RunDir], found: list[FoundStep]
) -> RestoredStep:
    """Writes the step of all shards. found: [shard] the same step. Raises StateError for one that
    is in doubt or tainted, or where the shards are no whole model; OSError if there is no room."""
    for number, one in enumerate(found):
        refuse_doubted(one, despite_audit=request.despite_audit)
        if one.snapshot.tainted:
            raise StateError(SHARDS_TAINTED(step=one.snapshot.step, shard=number))
        if _is_of_past_given_up(runs[number], one):
            raise StateError(SHARD_SAVED_BEFORE(step=one.snapshot.step, shard=number))
    addresses = runs[0].settings().sharded
    assert addresses is not None
    told = (one for each in found for one in each.assumed if not one.is_any_of(ONE_SHARD))
    assumed = (*dict.fromkeys(told), ALL_SHARDS(addresses.addresses))
    begun_s = time.monotonic()
    shards = [_shard_of(request, own, one) for own, one in zip(runs, found, strict=True)]
    written = write_shards(shards, target, request.options, assumed)
    audits = [audit_history_of(own).equal_step for own in runs]
    known = [step for step in audits if step is not None]
    return RestoredStep(
        out=target.path,
        source=f"the replicas of all {len(runs)} shards in {runs[0].root}",
        written=written,
        form=FORM,
        size_bytes=sum(file.bytes for file in written.files.values()),
        took_s=time.monotonic() - begun_s,
        auditable=True,
        audited=min(known) if len(known) == len(audits) else None,
        newer_tainted=found[0].newer_tainted,
        doubt=doubt_among(assumed),
    )


def refuse_other_lives(runs: Sequence[RunDir]) -> None:
    """Raises StateError where a step of the same number is another life's in some shards, or rests
    on a checkpoint that not all of them have."""
    if (given := unfinished(runs)) is not None:
        raise StateError(given)
    lives = [incarnation_of(own) for own in runs]
    if len({(one.number, one.step, one.base) for one in lives}) > 1:
        told = [f"shard {number}: {one.number}" for number, one in enumerate(lives)]
        raise StateError(SHARDS_OF_LIVES(lives=told))


def steps_at(runs: Sequence[RunDir], source: StepSource) -> list[FoundStep]:
    """[shard] the step that the source names."""
    return [newest_step(own, settle=False, step=source.step) for own in runs]


def _is_of_past_given_up(run: RunDir, found: FoundStep) -> bool:
    """Whether a saved step is not the one that the run's replica had last under this number. What
    the replica holds is."""
    step = found.snapshot.step
    if run.replica.exists() and step in peek_versions(run.replica)[1]:
        return False
    lines = run.steps.read_bytes().splitlines() if run.steps.exists() else []
    last = None
    for line in lines:
        with suppress(msgspec.DecodeError):  # the last one, of a machine that died
            told = msgspec.json.decode(line, type=_StepLine)
            last = told.digest if told.step == step else last
    return step > 0 and last != found.snapshot.digest


class _StepLine(msgspec.Struct, frozen=True):
    """Of a line of steps.jsonl, what is asked here."""

    step: int
    digest: str


def _shard_of(request: RestoreRequest, run: RunDir, found: FoundStep) -> ModelShard:
    model = run.settings().model
    contents = found.contents(FORM, request.options)
    state = contents.trainer_state
    whole: tuple[Finding, ...] = tuple(o for o in state.assumed if not o.is_any_of(ONE_SHARD))
    contents = replace(contents, trainer_state=replace(state, assumed=whole))
    return ModelShard(contents, dict(zip(model.names, model.cuts, strict=True)))
