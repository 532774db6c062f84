"""Finds the step that a command asks for: in a running chain's replica, or in a checkpoint
folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from flowcheck.config import JobConfig, OptimizerConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_restores import (
    BECAUSE,
    NOTHING_WRITTEN,
    OTHER_STEP,
    REPLICA_GONE,
    STATE_UNKNOWN,
    STEP_NOT_KEPT,
    STEPS_WAITING,
)
from flowcheck.findings.catalog.replica_state_errors import NO_STEPS
from flowcheck.findings.finding import Finding
from flowcheck.messages import parse_audit_record
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.replica.checkpoint import checkpoint_save, step_snapshot
from flowcheck.replica.checkpoint.checkpoint_load import trainer_state_as_saved
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.checkpoint.trainer_state import TrainerState, trainer_state
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    NO_EXPECTED_CHECKSUMS,
    ExpectedChecksums,
)
from flowcheck.replica.checkpoint_files.latest_pointer import STEP
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.replica.optimizer.user_code_trust import with_trusted_code
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_learning.learning_status import unlearned_reasons
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.job_incarnation import incarnation_of
from flowcheck.stages.job_state.model_layout import optimizer_in
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_progress
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import is_run
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.checkpoint_io import (
    contents_for,
    newest_output,
    template_for,
)
from flowcheck.vault.checkpoint_formats.format_registry import (
    NATIVE_FORMAT,
    NO_OPTIONS,
    FormatOptions,
)
from flowcheck.vault.trainer_checkpoint.buffer_step_inference import ObservedFile, buffer_digests
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate, stated_names

CALM_S = 1.0
"""Seconds in which nothing moves: what was captured has become steps, as far as it can. A choice:
longer delays each restore, shorter may give an older step on a busy machine."""
READING_S = 60.0
"""The same in seconds while staged messages wait to be read: a reading moves nothing that can be
seen. A choice, as CALM_S."""
UPDATE_S = 60.0
"""Seconds without a sign of life that a whole step the updater has begun may take. A choice: longer
delays the error of a dead updater, shorter gives a large model up."""
ARRIVING_S = 5.0
"""Seconds in which frames come without a pause: the job runs, and will not settle. A choice: longer
delays the answer, shorter misses the end of a job that is just stopping."""
COMING_S = 30.0
"""The same in seconds where frames come with pauses, as of a job whose steps take seconds. A
choice, as ARRIVING_S."""
LOOK_S = 0.05
"""Seconds between two looks at the positions. A choice: shorter costs processor time."""


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A whole step and what it rests on."""

    snapshot: Snapshot
    where: str
    """What it is of, to the user."""
    assumed: tuple[Finding, ...] = ()
    expected: ExpectedChecksums = NO_EXPECTED_CHECKSUMS
    """What the sums of its tensors are to be, of one whose files are checked when it is written."""
    stored_state: TrainerState | None = None
    """The step as it was written, of a checkpoint whose code is not run here."""
    observed_files: tuple[ObservedFile, ...] = ()
    """What files of the trainer's showed of the rest of its model."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trainer's parameter names, where the job file states them."""
        return stated_names(self.snapshot.layout)

    def contents(
        self, form: str = NATIVE_FORMAT, options: FormatOptions = NO_OPTIONS
    ) -> CheckpointContents:
        """What a checkpoint of it holds. Raises ConfigError and StateError as `contents_for`."""
        own = self.stored_state or trainer_state(self.snapshot, assumed=self.assumed)
        layout = self.snapshot.layout
        found = contents_for(own, layout, form, options, self.names, self.observed_files)
        return replace(found, expected=self.expected)

    def template(self, file: Path) -> CheckpointTemplate:
        """A checkpoint of the trainer's, read for this step's model."""
        return template_for(file, self.snapshot.layout, self.snapshot.optimizer)

    def with_files(self, files: Sequence[Path]) -> FoundStep:
        """With what else of the model these files show. Raises StateError where one is no
        checkpoint of a model of this layout, or does not tell of which step it is."""
        read = (self.template(file) for file in files)
        more = (ObservedFile(own.step, buffer_digests(own, own.non_parameters)) for own in read)
        return replace(self, observed_files=(*self.observed_files, *more))


@contextmanager
def found_step(source: StepSource, *, in_place: bool) -> Iterator[FoundStep]:
    """The step of a source on this machine: of a checkpoint folder, else of a run. in_place: its
    tensors stay where they lie until the end of the `with`, and are only read: see `_holding`, and
    `lazily` of `from_checkpoint`."""
    folder, chain = source.checkpoint, source.chain
    if folder is not None:
        by = code_approval_for(folder, source.run, code=source.code)
        yield from_checkpoint(folder, source.step, source.shown_as, lazily=in_place, by=by)
        return
    assert chain is not None, "what is at a URL was fetched"
    if in_place:
        with _holding(chain, source.step) as found:
            yield found
    else:
        yield newest_step(chain, settle=True, step=source.step)


def newest_step(run: RunDir, *, settle: bool, step: Step | None = None) -> FoundStep:
    """The newest step of a run: of its replica, else of the checkpoint its job names.

    settle: first let frames that were captured already become steps, as long as anything moves;
    of a job that goes on sending, the newest step there is. step: that one instead.
    Raises ConfigError without a run, StateError without the step.
    """
    if _replica_holds(run, step, settle=settle):
        return _of_replica(run, step_snapshot.copy_snapshot(run.replica, optimizer_in(run), step))
    return _of_files(run, step)


@contextmanager
def _holding(run: RunDir, step: Step | None) -> Iterator[FoundStep]:
    """As `newest_step`, in place: the replica's step stays as it is until the end of the `with`,
    and nothing is copied where the replica has a version to spare (step_snapshot.py); tensors of a
    checkpoint are checked by whom writes them (`FoundStep.expected`)."""
    if _replica_holds(run, step, settle=True):
        with step_snapshot.hold_snapshot(run.replica, optimizer_in(run), step) as taken:
            yield _of_replica(run, taken)
    else:
        yield _of_files(run, step, lazily=True)


def _replica_holds(run: RunDir, step: Step | None, *, settle: bool) -> bool:
    config = run.settings()
    if settle and step is None and run.stage_pids():
        _settle(run, config)
    return run.replica.exists() and (step is None or step in peek_versions(run.replica)[1])


def _of_replica(run: RunDir, taken: Snapshot) -> FoundStep:
    if taken.step == 0 and incarnation_of(run).step is None:
        raise StateError(STATE_UNKNOWN(run.root))
    where = f"the replica of {run.root}"
    return FoundStep(taken, where, assumptions_of(run), observed_files=seen_in(run))


def _of_files(run: RunDir, step: Step | None, *, lazily: bool = False) -> FoundStep:
    """A step that the run's replica does not hold."""
    config = run.settings()
    kept = _checkpoints(Path(config.checkpoint)) if config.checkpoint is not None else []
    if step is not None:
        named = [path for path in kept if path.name == f"step-{step}"]
        if not named:
            in_memory = peek_versions(run.replica)[1] if run.replica.exists() else ()
            held = {int(path.name.removeprefix(STEP)) for path in kept} | {*in_memory}
            there = sorted(held) or NO_STEPS()
            raise StateError(STEP_NOT_KEPT(run=run.root, step=step, kept=there))
        kept = named
    if not kept:
        gone = config.checkpoint is None and run.steps.exists()
        fact = (REPLICA_GONE if gone else NOTHING_WRITTEN)(run.root)
        reasons = unlearned_reasons(run)
        raise StateError(BECAUSE(fact=fact, reasons=reasons) if reasons else fact)
    by = CodeApproval((config.optimizer,))
    return replace(from_checkpoint(kept[-1], lazily=lazily, by=by), observed_files=seen_in(run))


@dataclass(frozen=True, slots=True)
class CodeApproval:
    """Who states the code that a checkpoint's manifest names."""

    configs: tuple[OptimizerConfig | None, ...] = ()
    """[optimizer] of job files: what one of them states as well is run."""
    user: bool = False
    """Whoever asks vouches for all of it."""

    def stated(self, config: OptimizerConfig) -> OptimizerConfig:
        """A checkpoint's [optimizer], whose code is run as far as it is stated."""
        if self.user:
            return with_trusted_code(config, None)
        for one in filter(None, self.configs):
            config = with_trusted_code(config, one)
        return config


NO_APPROVAL = CodeApproval()


def code_approval_for(checkpoint: Path, run: Path | None, *, code: bool) -> CodeApproval:
    """Of a checkpoint that a command names: the run directory that it lies in states its code, and
    the one that the command names. code: the user vouches for it."""
    configs = []
    for root in (run, *checkpoint.absolute().parents):
        # Somebody else's, or damaged: it states nothing here.
        with suppress(ConfigError, OSError):
            if root is not None and is_run(root):
                configs.append(RunDir(root).settings().optimizer)
    return CodeApproval(tuple(configs), code)


def from_checkpoint(
    folder: Path,
    step: Step | None = None,
    where: str | None = None,
    *,
    lazily: bool = False,
    by: CodeApproval = NO_APPROVAL,
) -> FoundStep:
    """The step of a checkpoint folder, or of a folder of them the one that `latest` names; step:
    that one instead; where: what it is called to the user; lazily: its tensors are checked by whom
    writes them (`Found.expected`); by: who states its code. Raises StateError where there is none,
    or it is not whole."""
    if step is not None and (folder / f"step-{step}").is_dir():
        folder /= f"step-{step}"
    folder = newest_output(folder)
    manifest = load_manifest(folder)
    if step not in (None, manifest.step):
        raise StateError(OTHER_STEP(path=folder, found=manifest.step, step=step))
    kept = checkpoint_save.load(folder, lazily=lazily)
    taken = checkpoint_save.snapshot_in(folder, kept)
    taken = replace(taken, optimizer=by.stated(taken.optimizer))
    own = trainer_state_as_saved(kept, taken, manifest.assumed)
    return FoundStep(taken, where or str(folder), manifest.assumed, kept.expected, own)


def seen_in(run: RunDir) -> tuple[ObservedFile, ...]:
    """Files that were held against the run's replica."""
    lines = run.audits.read_bytes().splitlines() if run.audits.exists() else []
    return tuple(
        ObservedFile(one.step, one.others)
        for one in map(parse_audit_record, lines)
        if one and one.others
    )


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, the newest step last."""
    found = [p for p in folder.glob(f"{STEP}*") if p.name.removeprefix(STEP).isdecimal()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(STEP)))


@dataclass(frozen=True, slots=True)
class _Positions:
    """Whatever moves while frames become steps."""

    heads: int
    tails: int
    staged: int
    covered_bytes: int
    applied: int
    whole: bool
    """A whole step waits for the updater."""
    unread: bool
    """Staged messages wait for a reading."""

    @property
    def settle_limit_s(self) -> float:
        """How long all this may stand still before nothing more is to be expected."""
        if self.whole or self.heads != self.tails:
            return UPDATE_S
        return READING_S if self.unread else CALM_S


def _settle(run: RunDir, config: JobConfig) -> None:
    """Raises StateError where whole steps wait and the updater does not apply them."""
    last = _positions(run, config)
    began_s = moved_s = arrived_s = since_s = time.monotonic()
    while time.monotonic() - moved_s < last.settle_limit_s:
        Event().wait(LOOK_S)
        now, now_s = _positions(run, config), time.monotonic()
        if now.heads != last.heads:
            since_s = now_s if now_s - arrived_s > CALM_S else since_s
            arrived_s = now_s
            if now_s - since_s > ARRIVING_S or now_s - began_s > COMING_S:
                return
        if now != last:
            last, moved_s = now, now_s
    if last.whole or last.heads != last.tails:
        raise StateError(STEPS_WAITING(run=run.root, seconds=UPDATE_S))


def _positions(run: RunDir, config: JobConfig) -> _Positions:
    heads = tails = staged = covered = applied = 0
    for number in range(len(config.rings)):
        with FrameRing.open(run.ring(number), reader=run.reader) as ring:
            heads, tails = heads + ring.head, tails + ring.tail
        if run.staging(number).exists():
            with Staging.open(run.staging(number)) as staging:
                staged += int(staging.handle.header.records_held)
    whole = False
    if (progress := source_progress(run)) is not None:
        whole, applied = progress.next_is_complete, progress.applied_iteration
        covered = progress.covered_bytes
    return _Positions(heads, tails, staged, covered, applied, whole, run.unread.exists())
