"""`flowcheck audit`: compares a step of the replica with the checkpoint that the trainer wrote
at that step."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.errors import ConfigError, StateError, naming_file
from flowcheck.findings.catalog.base_checkpoints import (
    AUDITED_JOB_OPEN,
    EQUAL_TO_SEVERAL,
    JOB_DIFFERS,
    NO_REPLICA,
    NO_REPLICA_YET,
    OF_JOB,
    OTHER_STEP,
    STEP_NOT_RECORDED,
    STEP_UNKNOWN,
)
from flowcheck.findings.catalog.file_audits import ONLY_COMPARED
from flowcheck.findings.catalog.hybrid_jobs import CARRIES_SHARD
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import run_option
from flowcheck.messages import AuditRecord
from flowcheck.ops.console_output import print_line
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.ops.watch.state.taint_of_models import tainted_models_if_read
from flowcheck.ops.watch.taint_table import print_tainted_models
from flowcheck.private_files import APPEND_FLAGS, append_to_open_file, open_private
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.checkpoint.frozen_and_buffers import read_frozen_and_buffers
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.digest_log import digests_at
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.gathered_parameters import parameter_placement
from flowcheck.stages.job_state.model_layout import layout_of, optimizer_of_run
from flowcheck.stages.job_state.training_facts import is_training_known, known_training
from flowcheck.stages.replica_update.step_log import tainted_parameters_at
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR
from flowcheck.step_numbers import Step
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.audit.difference_evidence import evidence_of, first_difference_finding
from flowcheck.vault.audit.step_settings_check import compare_step_settings
from flowcheck.vault.checkpoint_formats import checkpoint_io
from flowcheck.vault.checkpoint_formats.checkpoint_io import template_for
from flowcheck.vault.trainer_checkpoint.buffer_step_inference import buffer_digests
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate
from flowcheck.wire.training_job.learned_job import FollowedData

DIFFERENT = 1
SHOWN = 8
"""Differences that are listed; more are counted. A choice of layout."""
CORRECT = "correct [optimizer], and follow the job again from its start"
COMPARE = "compare [optimizer] with the trainer's script"
WRONG = (
    "the replica's settings are not the trainer's, so its steps differ even from the trainer's "
    f"own state: {CORRECT}"
)
NEXT = f"the replica's next step will differ from the trainer's: {CORRECT}"


def run(root: Path, file: Path, step: Step | None = None, *, as_json: bool) -> int:
    """Compares the replica with a checkpoint and prints the differences. Returns the exit code, 0
    if there are none. Raises ConfigError if there is no run, StateError if the step is unknown or
    the file does not fit."""
    runs = all_run_dirs(RunDir(root))
    if len(runs) > 1 and runs[0].settings().all_shards:
        return audit_shards(runs, file, step, as_json=as_json)
    where = run_of_file(RunDir(root), file, step)
    template = read_checkpoint_template(where, file, step, may_be_rounded=True)
    found = compare_with_replica(where, template, file)
    line = append_audit_line(where, found, file, template, evidence_in(where, template, found))
    models = tainted_models_if_read(RunDir(root))
    if as_json:
        result = msgspec.to_builtins(line) | {
            "differences": [asdict(d) for d in found.differences],
            "others": found.not_compared,
            "rounded_to": found.rounded_to,
            "settings": found.settings.differing,
            "notes": found.settings.notes,
            "heal": ONLY_COMPARED() if _would_heal(where, found) else None,
            "tainted_models": models,
        }
        print(msgspec.json.encode(result).decode())
    else:
        _print(found, file, line.evidence)
        if _would_heal(where, found):
            print_line(f"  {ONLY_COMPARED()}")
            print_line(f"  {ONLY_COMPARED().remedy}")
        if found.differences and not found.settings.differing:
            command = f"flowcheck base {shlex.quote(str(file))}{run_option(root)}"
            goes_on = f"to continue from the trainer's own state, run: `{command}`"
            print_line(f"  {goes_on if where.replica.exists() else f'{COMPARE}; {CORRECT}'}")
        print_tainted_models(models or ())
    return 0 if found.passed else DIFFERENT


def audit_shards(runs: Sequence[RunDir], file: Path, step: Step | None, *, as_json: bool) -> int:
    """Compares each shard with its part of a checkpoint of the whole model. Nothing is written down
    before all were compared."""
    tree = checkpoint_io.read(file)
    compared = []
    for own in runs:
        template = read_checkpoint_template(own, file, step, may_be_rounded=True, tree=tree)
        compared.append((template, compare_with_replica(own, template, file)))
    lines, passed = [], True
    for number, (own, (template, found)) in enumerate(zip(runs, compared, strict=True)):
        evidence = evidence_in(own, template, found)
        if (other := _carried(number, runs, found, file, tree)) is not None:
            evidence = (CARRIES_SHARD(shard=number, other=other), *evidence)
        line = append_audit_line(own, found, file, template, evidence)
        passed &= found.passed
        lines.append(msgspec.to_builtins(line) | {"shard": number})
        if not as_json:
            print_line(f"shard {number} of {len(runs)}:")
            _print(found, file, line.evidence)
    if as_json:
        told = {"step": lines[0]["step"], "file": str(file), "passed": passed, "shards": lines}
        print(msgspec.json.encode(told).decode())
    return 0 if passed else DIFFERENT


def _carried(
    shard: int, runs: Sequence[RunDir], found: bitwise_audit.Audit, file: Path, tree: Any
) -> int | None:
    """The shard whose gradients a replica took in place of its own: it began with its own weights,
    so what its optimizer keeps alone is the other's. None: nothing shows another one."""
    if not _states_differ(found):
        return None
    own, layout = runs[shard], _layout_and_steps(runs[shard])[0]
    for other, of in enumerate(runs):
        if other == shard:
            continue
        cuts = of.settings().model.cuts
        try:
            part = template_for(
                file, layout, optimizer_of_run(own), found.step, cuts=cuts, tree=tree
            )
            if not _states_differ(compare_with_replica(own, part, file)):
                return other
        except StateError:
            continue  # of other shapes
    return None


def _states_differ(found: bitwise_audit.Audit) -> bool:
    """Whether what the optimizer keeps differs."""
    return any("/" in difference.name for difference in found.differences)


def _would_heal(where: RunDir, found: bitwise_audit.Audit) -> bool:
    """Whether a command that changes the replica would make tainted elements exact by the file."""
    tainted = found.tainted_elements > 0 and found.rounded_to is None
    return found.passed and tainted and where.replica.exists()


def evidence_in(
    where: RunDir, template: CheckpointTemplate, found: bitwise_audit.Audit
) -> tuple[Finding, ...]:
    """The first difference by its element, and what the file holds in its place; () if it
    passed."""
    first = first_difference_finding(found)
    digests = digests_at(where.trace, template.step) if found.differences else None
    if first is None or digests is None:
        return () if first is None else (first,)
    layout, own = _layout_and_steps(where)[0], optimizer_of_run(where)
    return (first, *evidence_of(found, template, layout, own, where.trace, len(digests)))


def append_audit_line(
    where: RunDir,
    found: bitwise_audit.Audit,
    file: Path,
    template: CheckpointTemplate,
    evidence: tuple[Finding, ...] = (),
    *,
    base: bool = False,
) -> AuditRecord:
    """Writes down what came of an audit, and what else is in the file, which a restore may need.
    base: the file was given as the replica's base. Where rounded values are equal that is no audit
    of the replica, whose bits they do not show: nothing is written. Raises OSError if there is no
    room."""
    line = AuditRecord(
        step=found.step,
        passed=found.passed,
        file=str(file),
        tensors=found.tensors,
        first_difference=found.first_difference,
        tainted_elements=found.tainted_elements,
        # What differs may be of another job.
        others=buffer_digests(template, found.not_compared) if found.equal else {},
        optimizer=found.optimizer and not found.parameters_only,
        evidence=evidence,
        base=base,
    )
    if found.rounded_to is None or not found.passed:
        append_record(where, where.audits, line)
    return line


def append_base_line(where: RunDir, step: Step, file: Path) -> None:
    """Writes down that the replica goes on from a base, so that earlier differences tell nothing
    of it any more."""
    line = AuditRecord(step=step, passed=True, file=str(file), tensors=0, base=True)
    append_record(where, where.audits, line)


def append_record(
    where: RunDir, path: Path, record: msgspec.Struct, *, durable: bool = True
) -> None:
    """Appends a line to a file of a run. durable: it is on disk when this returns, so that nothing
    takes a difference back. Raises OSError if there is no room."""
    with naming_file(path):
        log = open_private(path, APPEND_FLAGS)
        try:
            append_to_open_file(log, msgspec.json.encode(record))
            if durable:
                os.fsync(log)
            _belong_beside(where, log)
        finally:
            os.close(log)


def _belong_beside(where: RunDir, descriptor: int) -> None:
    """A file that root made in a run directory is its owner's, who adds the next line."""
    owner, made = where.root.stat(), os.fstat(descriptor)
    if os.geteuid() == 0 == made.st_uid and made.st_nlink == 1:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def run_of_file(where: RunDir, file: Path, step: Step | None = None) -> RunDir:
    """The run directory of the job that a checkpoint belongs to. Raises StateError as `_one_of`."""
    runs = all_run_dirs(where)
    return _one_of(runs, file, step) if len(runs) > 1 else where


def _one_of(runs: Sequence[RunDir], file: Path, step: Step | None) -> RunDir:
    """The job of several that a checkpoint belongs to: the one whose replica equals it. Raises
    StateError if it equals none or several."""
    passed: list[RunDir] = []
    why: list[Finding] = []
    for number, own in enumerate(runs, 1):
        try:
            template = read_checkpoint_template(own, file, step, may_be_rounded=True)
            found = compare_with_replica(own, template, file)
        except StateError as error:
            why.append(OF_JOB(number=number, why=error.finding))
            continue
        if found.equal:
            passed.append(own)
        else:
            why.append(JOB_DIFFERS(number=number, tensor=found.differences[0].name))
    if len(passed) == 1:
        return passed[0]
    reasons = tuple(why) or (EQUAL_TO_SEVERAL(),)
    raise StateError(AUDITED_JOB_OPEN(file=file, reasons=reasons, run=runs[0].root))


def _layout_and_steps(where: RunDir) -> tuple[Layout, tuple[Step, ...]]:
    """The replica's layout, and the steps that it holds; () after the chain's end, of which the
    steps' digests are kept. Raises StateError where no step was applied."""
    if where.replica.exists():
        return peek_versions(where.replica)
    if not (where.trace.exists() and is_training_known(where)):
        runs = SUPERVISOR.name in where.port.stage_pids()
        raise StateError((NO_REPLICA_YET if runs else NO_REPLICA)(where.root))
    job, config = known_training(where), where.settings()
    if job.kind is FollowedData.PARAMETERS:
        return parameter_placement(where, job, config)[0].layout, ()
    return layout_of(job, config), ()


def read_checkpoint_template(
    where: RunDir,
    file: Path,
    step: Step | None = None,
    *,
    may_be_rounded: bool = False,
    tree: Any = None,
) -> CheckpointTemplate:
    """Reads a checkpoint of the trainer as a template for the replica of a run. may_be_rounded: it
    is only compared, so that its model may be saved in half precision; tree: what is in the file,
    where it was read. Raises ConfigError if there
    is no run, StateError if the checkpoint does not fit or neither it nor `step` shows its step."""
    cuts = where.settings().model.cuts
    layout, optimizer = _layout_and_steps(where)[0], optimizer_of_run(where)
    template = template_for(
        file, layout, optimizer, step, may_be_rounded=may_be_rounded, cuts=cuts, tree=tree
    )
    if step is None and not template.tells_step:
        raise StateError(STEP_UNKNOWN(file))
    if step is not None and template.tells_step and template.step != step:
        raise ConfigError("--step", step, OTHER_STEP(file=file, step=template.step))
    return template


def compare_with_replica(
    where: RunDir, template: CheckpointTemplate, file: Path
) -> bitwise_audit.Audit:
    """Compares a checkpoint with the replica at the checkpoint's step. Raises StateError if this
    step is unknown."""
    found = _stepped_against(where, template, file)
    told = compare_step_settings(template, optimizer_of_run(where), _layout_and_steps(where)[0])
    found = replace(found, settings=told)
    if not where.replica.exists():
        return found  # what the optimizer does not step has no digests
    return bitwise_audit.audit_frozen_and_buffers(
        found, template, read_frozen_and_buffers(where.replica, template.step)
    )


def _stepped_against(
    where: RunDir, template: CheckpointTemplate, file: Path
) -> bitwise_audit.Audit:
    if template.step in _layout_and_steps(where)[1]:
        try:
            taken = step_snapshot.copy_snapshot(
                where.replica, optimizer_of_run(where), template.step
            )
            return bitwise_audit.audit_snapshot(template, taken)
        except StateError:
            if template.step in _layout_and_steps(where)[1]:
                raise  # otherwise it was overwritten meanwhile: its digests are still there
    return _by_digests(where, template, file)


def _by_digests(where: RunDir, template: CheckpointTemplate, file: Path) -> bitwise_audit.Audit:
    layout, kept = _layout_and_steps(where)
    digests = digests_at(where.trace, template.step)
    if digests is None:
        at = max(kept) if kept else (last_step(where) or {"step": 0})["step"]
        what = STEP_NOT_RECORDED(file=file, step=template.step, run=where.root, at=at)
        raise StateError(what)
    tainted = tainted_parameters_at(where, template.step, layout)
    return bitwise_audit.audit_digests(template, layout, optimizer_of_run(where), digests, tainted)


def _print(found: bitwise_audit.Audit, file: Path, evidence: tuple[Finding, ...] = ()) -> None:
    compared = found.optimizer and not found.parameters_only
    kinds = "parameters and optimizer tensors" if compared else "parameters"
    left = f"; {len(found.not_compared)} tensors of the file (buffers) are not in the replica"
    left_out = left if found.not_compared else ""
    if found.parameters_only:
        left_out += "; the replica has no optimizer state, only parameters as they are sent"
    elif not found.optimizer:
        left_out += "; the file holds no optimizer state, so that of the replica was not compared"
    if found.tainted_elements:
        left_out += f"; {found.tainted_elements:,} "
        left_out += (
            "elements of tainted tensors were not compared, as only digests of the step are kept"
            if found.by_digests
            else "tainted elements were not compared"
        )
    if found.rounded_to is not None:
        left_out += f"; compared rounded to {found.rounded_to}: that shows no bit of the replica"
    if found.equal:
        how = ", bit for bit" if found.rounded_to is None else ""
        print_line(f"step {found.step}: all {found.tensors} {kinds} of {file} equal{how}{left_out}")
    else:
        differ = f"{len(found.differences)} of {found.tensors} {kinds} differ"
        print_line(f"step {found.step}: {differ}{left_out}")
    for difference in found.differences[:SHOWN]:
        print_line(f"  {difference.name}: {_how_far(difference)}")
    if len(found.differences) > SHOWN:
        print_line(f"  and {len(found.differences) - SHOWN} more")
    for one in evidence[1:]:  # the first is among the differences
        print_line(f"  {one}")
    _print_settings(found)


def _print_settings(found: bitwise_audit.Audit) -> None:
    if found.settings.differing:
        print_line("  the optimizer's settings in the file are not those of the replica:")
    for phrase in found.settings.differing:
        print_line(f"  {phrase}")
    for phrase in found.settings.notes:
        print_line(f"  note: {phrase}")
    if found.settings.differing:
        print_line(f"  {_meaning(found)}")


def _meaning(found: bitwise_audit.Audit) -> str:
    if not found.equal:
        return WRONG
    if found.step == 0:
        return f"no step was made with these settings yet; {NEXT}"
    return f"they changed no bit until step {found.step}, or were changed at it; {NEXT}"


def _how_far(difference: bitwise_audit.Difference) -> str:
    if difference.elements is None:
        return "differs (only the digest of that step is kept, not its bytes)"
    far = "a NaN" if difference.ulp is None else f"{difference.ulp:,} ulp"
    at = "".join(f"[{place}]" for place in difference.index or ())
    values = f"{difference.file_value} in the file, {difference.replica_value} in the replica"
    return f"{difference.elements:,} elements differ, by up to {far}; the first{at}: {values}"
