"""Finds the step that a command asks for: in a running chain's replica, or in a checkpoint
folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_restores import (
    ALL_TAINTED,
    BECAUSE,
    ELEMENTS_TAINTED,
    KILLED_BEFORE_STEP,
    NO_STEP_YET,
    NOTHING_WRITTEN,
    OTHER_STEP,
    OVER_BECAUSE,
    REPLAY_SAVED_NOTHING,
    REPLICA_GONE,
    SAVED_IN_FOLDER,
    SAVED_IN_STORE,
    STATE_UNKNOWN,
    STEP_NOT_KEPT,
    STEP_NOT_REACHED,
    STEP_NOT_THERE,
    STEP_TAINTED,
)
from flowcheck.findings.catalog.replica_state_errors import NO_STEPS
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_TAINTED_BEHIND_GAP,
    JOURNAL_TAINTED_LATE,
)
from flowcheck.findings.finding import Finding
from flowcheck.messages import parse_audit_record
from flowcheck.ops.restore.chain_settling import settle_chain
from flowcheck.ops.restore.checkpoint_doubts import basis_of, is_found_equal_by
from flowcheck.ops.restore.made_again import doubt_of_save, later_step, more_behind, save_before
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.ops.watch.state.held_steps import (
    checkpoints_in,
    checkpoints_of,
    is_tainted,
    step_in_folder_name,
    was_called_exact,
)
from flowcheck.ops.watch.state.saved_steps import durable_save
from flowcheck.ops.watch.state.shutdown_record import read_end
from flowcheck.replica.checkpoint import checkpoint_save, step_snapshot
from flowcheck.replica.checkpoint.checkpoint_load import trainer_state_as_saved
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.checkpoint.trainer_state import TrainerState, trainer_state
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    NO_EXPECTED_CHECKSUMS,
    ExpectedChecksums,
)
from flowcheck.replica.checkpoint_files.manifest import load_manifest, manifest_path
from flowcheck.replica.optimizer.user_code_trust import with_trusted_code
from flowcheck.replica.state_file.file_header import peek_tainted, peek_versions
from flowcheck.replica.taint import (
    tainted_elements,
    tainted_finding,
    tainted_since,
)
from flowcheck.stages.job_learning.learning_status import unlearned_reasons
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audit_history import doubts_of
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import is_run
from flowcheck.stages.stage_table import SUPERVISOR
from flowcheck.step_numbers import Step, step_ranges
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
from flowcheck.vault.erasure.small_files import striped_step
from flowcheck.vault.persist.checkpoint_of_step import checkpoint_of_step, newest_with_tainted
from flowcheck.vault.trainer_checkpoint.buffer_step_inference import ObservedFile, buffer_digests
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate, stated_names


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A complete step, with its assumptions and checksums."""

    snapshot: Snapshot
    where: str
    """Name of the step's source in messages."""
    assumed: tuple[Finding, ...] = ()
    expected: ExpectedChecksums = NO_EXPECTED_CHECKSUMS
    """Checksums that the tensors must have, if they are verified only while they are written."""
    stored_state: TrainerState | None = None
    """The trainer's state as it stands in a checkpoint; None for a step of a replica."""
    observed_files: tuple[ObservedFile, ...] = ()
    """Files of the trainer that are evidence about buffers."""
    newer_tainted: tuple[Step, ...] = ()
    """Steps that are newer, and not given because elements of them are tainted."""
    later: Finding | None = None
    """What a folder of gradients holds behind it, or why it has nothing; None: nothing is known."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trainer's parameter names; empty if they are not stated."""
        return stated_names(self.snapshot.layout)

    def contents(
        self, form: str = NATIVE_FORMAT, options: FormatOptions = NO_OPTIONS
    ) -> CheckpointContents:
        """The contents of a checkpoint of this step. Raises as `contents_for` does."""
        own = self.stored_state or trainer_state(self.snapshot, assumed=self.assumed)
        layout = self.snapshot.layout
        found = contents_for(own, layout, form, options, self.names, self.observed_files)
        return replace(found, expected=self.expected)

    def template(self, file: Path) -> CheckpointTemplate:
        """Reads a checkpoint of the trainer as a template for this step's model."""
        return template_for(file, self.snapshot.layout, self.snapshot.optimizer)

    def with_files(self, files: Sequence[Path]) -> FoundStep:
        """This step with further files of the trainer as evidence about buffers. Raises StateError
        if a file does not fit the model or does not show its step."""
        read = (self.template(file) for file in files)
        more = (ObservedFile(own.step, buffer_digests(own, own.non_parameters)) for own in read)
        return replace(self, observed_files=(*self.observed_files, *more))


@contextmanager
def found_step(source: StepSource, *, in_place: bool) -> Iterator[FoundStep]:
    """Yields the step of a source on this machine: a checkpoint folder, else a run. in_place: its
    tensors are not copied, are valid until the end of the `with`, and must not be changed
    (`_holding`, and `lazily` of `step_in_checkpoint`)."""
    folder, chain = source.checkpoint, source.chain
    allowed = source.allow_tainted
    if folder is not None:
        by = code_approval_for(folder, source.run, code=source.code)
        if source.gradients is not None:
            yield untainted(_made_again(source, folder, by), allowed=allowed)
            return
        folder = output_of_step(folder, source.step, allow_tainted=allowed)
        found = step_in_checkpoint(
            folder, source.step, source.shown_as, lazily=in_place, by=by, run=source.run
        )
        for doubt in reversed(source.doubts):
            found = _with_doubt(found, doubt)
        yield untainted(found, allowed=allowed)
        return
    assert chain is not None, "what is at a URL was fetched"
    if in_place:
        with _holding(chain, source.step, allow_tainted=allowed) as found:
            yield untainted(found, allowed=allowed)
    else:
        yield newest_step(chain, settle=True, step=source.step, allow_tainted=allowed)


def untainted(found: FoundStep, *, allowed: bool = False) -> FoundStep:
    """The step. allowed: also one with tainted elements. Raises StateError for one that has any
    otherwise."""
    taken = found.snapshot
    if taken.tainted and not allowed:
        taint = tainted_finding(taken.tainted, taken.layout)
        raise StateError(STEP_TAINTED(step=taken.step, where=found.where, taint=taint))
    return found


def refuse_tainted(checkpoint: Path) -> None:
    """Raises StateError for an output of FlowCheck with tainted elements."""
    manifest = load_manifest(checkpoint)
    if manifest.tainted:
        count, since = tainted_elements(manifest.tainted), tainted_since(manifest.tainted)
        taint = ELEMENTS_TAINTED(elements=count, since=since)
        raise StateError(STEP_TAINTED(step=manifest.step, where=checkpoint, taint=taint))


def newest_step(
    run: RunDir, *, settle: bool, step: Step | None = None, allow_tainted: bool = False
) -> FoundStep:
    """The newest step of a run: from its replica, else from the checkpoint folder of its job file,
    or else from the checkpoint that was kept when its chain ended.

    settle: first waits until captured frames have become steps; not longer for a job that continues
    to send. step: this step in place of the newest. allow_tainted: also one of which elements rest
    on bytes that never came; else the newest without such. Raises ConfigError if there is no run,
    StateError if there is no such step.
    """
    if _replica_holds(run, step, settle=settle):
        wanted, newer = _exact_step(run, step, allow_tainted=allow_tainted)
        if wanted is not None or not newer:
            taken = step_snapshot.copy_snapshot(run.replica, optimizer_of_run(run), wanted)
            found = replace(_of_replica(run, taken), newer_tainted=newer)
            return untainted(found, allowed=allow_tainted)
        return _of_files(run, step, newer=newer)
    return _of_files(run, step, allow_tainted=allow_tainted)


@contextmanager
def _holding(run: RunDir, step: Step | None, *, allow_tainted: bool) -> Iterator[FoundStep]:
    """Yields the same step as `newest_step`, without a copy if the replica can spare a version
    (step_snapshot.py). The step does not change until the end of the `with`. The caller verifies a
    checkpoint's tensors when it writes them (`FoundStep.expected`)."""
    if not _replica_holds(run, step, settle=True):
        yield _of_files(run, step, lazily=True, allow_tainted=allow_tainted)
        return
    wanted, newer = _exact_step(run, step, allow_tainted=allow_tainted)
    if wanted is None and newer:
        yield _of_files(run, step, lazily=True, newer=newer)
        return
    with step_snapshot.hold_snapshot(run.replica, optimizer_of_run(run), wanted) as taken:
        yield replace(_of_replica(run, taken), newer_tainted=newer)


def _exact_step(
    run: RunDir, step: Step | None, *, allow_tainted: bool
) -> tuple[Step | None, tuple[Step, ...]]:
    """(which step of the replica to take, newer ones that are tainted). (None, ()): the newest;
    (None, those): the replica holds none that is not tainted."""
    if step is not None or allow_tainted:
        return step, ()
    tainted = peek_tainted(run.replica)
    if not tainted:
        return None, ()
    exact = [of for of in peek_versions(run.replica)[1] if of not in tainted]
    newest = exact[-1] if exact else None
    return newest, tuple(sorted(of for of in tainted if newest is None or of > newest))


def _replica_holds(run: RunDir, step: Step | None, *, settle: bool) -> bool:
    config = run.settings()
    if settle and step is None and run.stage_pids():
        settle_chain(run, config)
    return run.replica.exists() and (step is None or step in peek_versions(run.replica)[1])


def _of_replica(run: RunDir, taken: Snapshot) -> FoundStep:
    if taken.step == 0 and incarnation_of(run).step is None:
        raise StateError(STATE_UNKNOWN(run.root))
    where = f"the replica of {run.root}"
    basis = (*doubts_of(run, taken.step), *assumptions_of(run))
    return FoundStep(taken, where, basis, observed_files=observed_files_of(run))


def _of_files(
    run: RunDir,
    step: Step | None,
    *,
    lazily: bool = False,
    allow_tainted: bool = False,
    newer: tuple[Step, ...] = (),
) -> FoundStep:
    """A step that the run's replica does not hold. newer: steps that it does hold, all tainted."""
    config = run.settings()
    named_in_settings = config.checkpoint is not None
    kept = checkpoints_of(run)
    if step is not None:
        named = [path for path in kept if step_in_folder_name(path) == step]
        if not named:
            in_memory = peek_versions(run.replica)[1] if run.replica.exists() else ()
            raise StateError(
                _step_not_kept(run, step, in_memory, [*map(step_in_folder_name, kept)])
            )
        kept = named if len(named) < 2 else [checkpoint_of_step(named[0].parent, step) or named[-1]]
    if newer and not kept:
        raise StateError(ALL_TAINTED(run=run.root, steps=newer))
    if not kept:
        raise StateError(_no_step(run, named_in_settings=named_in_settings))
    chosen = kept[-1]
    if step is None and not allow_tainted:
        whole = (path for path in reversed(kept) if not _lacks_bytes(run, path))
        chosen = next(whole, kept[-1])
        newer = newer or tuple(
            of for of in map(step_in_folder_name, kept) if of > step_in_folder_name(chosen)
        )
    by = CodeApproval((config.optimizer,))
    found = step_in_checkpoint(chosen, lazily=lazily, by=by, run=run.root)
    found = replace(found, observed_files=observed_files_of(run), newer_tainted=newer)
    journal = config.gradient_log.folder
    if journal is not None and step is None and not run.replica.exists():
        found = replace(found, later=more_behind(found.snapshot, chosen, Path(journal)))
    return untainted(found, allowed=allow_tainted)


def url_of_store(folder: Path, step: Step | None) -> tuple[str, Step | None] | None:
    """(URL of the store, the step) of a folder that is one of several stores, or a step's there;
    None: it is neither. step: that is wanted. Raises StateError where it is another one."""
    if (striped := striped_step(folder)) is None:
        return None
    store, named = striped
    if named is not None and step not in (None, named):
        raise StateError(OTHER_STEP(path=folder, found=str(named), step=step))
    return store.absolute().as_uri(), step if named is None else named


def step_on_stores(
    run: RunDir, step: Step | None, *, allow_tainted: bool = False
) -> tuple[str, Step | None] | None:
    """(URL of a store, the step there) where a run that has ended left its step as blocks of
    several stores; None: it did not, its replica is still there, or it is of several jobs."""
    if run.replica.exists() or len(all_run_dirs(run)) > 1:
        return None
    kept = [path for path in checkpoints_of(run) if step in (None, step_in_folder_name(path))]
    whole = [path for path in kept if allow_tainted or not _lacks_bytes(run, path)]
    return url_of_store((whole or kept)[-1], step) if kept else None


def _lacks_bytes(run: RunDir, checkpoint: Path) -> bool:
    """By its manifest, or by what turned out behind it."""
    tainted = is_tainted(checkpoint)
    return bool(tainted) or was_called_exact(run, checkpoint)


def _step_not_kept(
    run: RunDir, step: Step, in_memory: Sequence[int], in_files: Sequence[int]
) -> Finding:
    """Why a step is not had, with those that are. in_memory: steps that the replica of a chain
    which was not ended holds; in_files: those of its checkpoints."""
    kept = sorted({*in_memory, *in_files})
    is_ahead = bool(in_memory) and step > kept[-1]
    entry = STEP_NOT_REACHED if is_ahead else STEP_NOT_KEPT
    return entry(
        run=run.root,
        step=step,
        kept=kept or NO_STEPS(),
        ranges=step_ranges(kept) or NO_STEPS(),
        newest=kept[-1] if kept else NO_STEPS(),
    )


def _out_of_replay(run: RunDir) -> str | None:
    """The folder for checkpoints that an ended replay was given; None: none, or it is no replay."""
    try:
        end = read_end(run.port)
    except (OSError, msgspec.DecodeError):
        return None
    return None if end is None or not end.replay else end.replay_options.out


def _no_step(run: RunDir, *, named_in_settings: bool) -> Finding:
    """Why a run has neither a step nor a checkpoint, by what its chain does: it runs, has ended or
    was killed. Only of a chain that runs the reasons say what to wait for."""
    runs = SUPERVISOR.name in run.port.stage_pids()
    saved = None if runs else durable_save(run)
    if saved is not None:
        if saved.is_local:
            return SAVED_IN_FOLDER(run=run.root, step=saved.step, folder=saved.target)
        return SAVED_IN_STORE(run=run.root, step=saved.step, place=f"{saved.target}/{saved.name}")
    if runs:
        fact, because = NO_STEP_YET(run.root), BECAUSE
    elif not named_in_settings and run.steps.exists():
        out = _out_of_replay(run)
        gone = REPLICA_GONE(run.root)
        fact = gone if out is None else REPLAY_SAVED_NOTHING(run=run.root, folder=out)
        because = BECAUSE
    elif run.port.ended.exists():
        fact, because = NOTHING_WRITTEN(run.root), OVER_BECAUSE
    else:
        return KILLED_BEFORE_STEP(run.root)
    reasons = unlearned_reasons(run)
    return because(fact=fact, reasons=reasons) if reasons else fact


@dataclass(frozen=True, slots=True)
class CodeApproval:
    """Which code of those named in a checkpoint's manifest may be run."""

    configs: tuple[OptimizerConfig | None, ...] = ()
    """[optimizer] of job files. Code that one of them names too may be run."""
    user: bool = False
    """True: the user trusts all code that the manifest names."""

    def stated(self, config: OptimizerConfig) -> OptimizerConfig:
        """The checkpoint's optimizer settings, with approved code marked as trusted."""
        if self.user:
            return with_trusted_code(config, None)
        for one in filter(None, self.configs):
            config = with_trusted_code(config, one)
        return config


NO_APPROVAL = CodeApproval()


def code_approval_for(checkpoint: Path, run: Path | None, *, code: bool) -> CodeApproval:
    """The code that may be run for a checkpoint: code named in the settings of the run `run`, or of
    a run in whose directory the checkpoint lies. code: the user trusts all code."""
    configs = []
    for root in (run, *checkpoint.absolute().parents):
        # Somebody else's, or damaged: it states nothing here.
        with suppress(ConfigError, OSError):
            if root is not None and is_run(root):
                configs.append(RunDir(root).settings().optimizer)
    return CodeApproval(tuple(configs), code)


def step_in_checkpoint(
    folder: Path,
    step: Step | None = None,
    where: str | None = None,
    *,
    lazily: bool = False,
    by: CodeApproval = NO_APPROVAL,
    run: Path | None = None,
) -> FoundStep:
    """The step in a checkpoint folder, or in the folder that `latest` names in a folder of
    checkpoints.

    step: this step in place of `latest`. where: the source's name in messages. lazily: the caller
    verifies the tensors when it writes them (`FoundStep.expected`). by: code that may be run. run:
    a run directory, whose audits count if it saved the checkpoint.
    Raises StateError if there is no such step or it is damaged.
    """
    folder = output_of_step(folder, step)
    manifest = load_manifest(folder)
    if step not in (None, manifest.step):
        raise StateError(OTHER_STEP(path=folder, found=manifest.step, step=step))
    kept = checkpoint_save.load(folder, lazily=lazily)
    taken = checkpoint_save.snapshot_in(folder, kept)
    taken = replace(taken, optimizer=by.stated(taken.optimizer))
    basis = basis_of(folder, manifest, run)  # an audit may have failed since it was written
    own = trainer_state_as_saved(kept, taken, basis)
    return FoundStep(taken, where or str(folder), basis, kept.expected, own)


def output_of_step(folder: Path, step: Step | None, *, allow_tainted: bool = False) -> Path:
    """The checkpoint of this step in a folder of them, or the one that `latest` names; the folder
    itself where it is one. allow_tainted: in place of what `latest` names the newest one, which
    may have tainted elements. Raises StateError if it has others, and not this step."""
    own = None if step is None else checkpoint_of_step(folder, step)
    if own is not None:
        return newest_output(own)
    newest = newest_output(folder)
    if step is not None and newest != folder and manifest_path(newest).is_file():
        there = tuple(dict.fromkeys(map(step_in_folder_name, checkpoints_in(folder))))
        if there and load_manifest(newest).step != step:
            raise StateError(STEP_NOT_THERE(path=folder, step=step, steps=there))
    if step is None and allow_tainted and newest.parent == folder:  # by `latest`
        return newest_with_tainted(folder, newest)
    return newest


def _made_again(source: StepSource, folder: Path, by: CodeApproval) -> FoundStep:
    """A step behind a saved checkpoint, from the gradients that were kept. It rests on what the
    save does, on the audits since, and on no past that was given up."""
    assert source.gradients is not None
    saved = newest_output(save_before(folder, source.step))
    base = step_in_checkpoint(saved, None, source.shown_as, by=by, run=source.run)
    if base.snapshot.step == source.step:
        why = doubt_of_save(base.snapshot, saved, source.gradients)
        return _doubted(base, why, saved, source.run)
    given = base.snapshot, saved, source.gradients, source.step
    made = later_step(*given, allow_tainted=source.allow_tainted)
    base = replace(base, later=made.later, newer_tainted=made.newer_tainted)
    if made.snapshot.step == base.snapshot.step:
        return _doubted(base, made.doubt, saved, source.run)
    basis = basis_of(saved, load_manifest(saved), source.run, made.snapshot)
    where = f"{base.where} and the gradients in {source.gradients}"
    again = replace(base, snapshot=made.snapshot, where=where, stored_state=None, assumed=basis)
    return _doubted(again, made.doubt, saved, source.run)


def _doubted(found: FoundStep, why: Finding | None, saved: Path, run: Path | None) -> FoundStep:
    """The step with the doubt that its past throws on it, unless an audit shows it."""
    if why is None or _is_shown(why, saved, run, found.snapshot.step):
        return found
    return _with_doubt(found, why)


def _with_doubt(found: FoundStep, why: Finding) -> FoundStep:
    own = found.stored_state
    if own is not None:
        own = replace(own, assumed=(why, *own.assumed))
    return replace(found, assumed=(why, *found.assumed), stored_state=own)


def _is_shown(why: Finding, saved: Path, run: Path | None, step: Step) -> bool:
    """Whether an audit shows a step all the same. Behind the step at which elements turned out to
    be tainted they may have been healed, which shows nothing of the step itself."""
    if why.is_any_of(JOURNAL_TAINTED_BEHIND_GAP):
        return False
    to = Step(int(str(why.arguments["to"])))
    last = to if why.is_any_of(JOURNAL_TAINTED_LATE) else None
    return step < to and is_found_equal_by(saved, run, step, last)


def observed_files_of(run: RunDir) -> tuple[ObservedFile, ...]:
    """The trainer's files that were audited against the run's replica."""
    lines = run.audits.read_bytes().splitlines() if run.audits.exists() else []
    return tuple(
        ObservedFile(one.step, one.others)
        for one in map(parse_audit_record, lines)
        if one and one.others
    )
