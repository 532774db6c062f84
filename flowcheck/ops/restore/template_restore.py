"""`flowcheck restore --template`: fills a checkpoint that the trainer wrote with the tensors of
a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.ops.console_output import print_line
from flowcheck.ops.lifecycle.chain_runner import last_audit
from flowcheck.ops.restore import step_lookup
from flowcheck.ops.restore.step_lookup import with_extra_files
from flowcheck.private_files import make_folder
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, optimizer_numbering
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.audit.param_group_check import check_groups
from flowcheck.vault.overwrite_guard import ProtectedPath, check_out
from flowcheck.vault.trainer_checkpoint import template_fill
from flowcheck.vault.trainer_checkpoint.checkpoint_template import load_template


@dataclass(frozen=True, slots=True)
class StepRequest:
    """The step that is asked for."""

    checkpoint: Path | None = None
    """A checkpoint's folder, or one of them; None: of the run."""
    step: Step | None = None
    """None: the newest."""
    where: str | None = None
    """What the checkpoint's folder is called to the user."""
    spared: tuple[ProtectedPath, ...] = ()
    """What it, or what it is filled into, lies in."""
    also: tuple[Path, ...] = ()
    """More checkpoints of the trainer's, of other steps."""
    code: bool = False
    """Code that the checkpoint names is run: the user vouches for it."""


def run(
    root: Path, template: Path, out: Path, *, which: StepRequest, force: bool, as_json: bool
) -> int:
    """Writes `out`. Raises ConfigError, StateError where there is no step or it does not fit."""
    check_out(out, force=force, folder=False, spared=which.spared)
    checkpoint = which.checkpoint
    if template.is_dir():
        right = "is a folder: --format NAME --like FOLDER writes one in its place"
        raise ConfigError("--template", str(template), right)
    if checkpoint is not None:
        by = step_lookup.code_approval_for(checkpoint, root, code=which.code)
        found = step_lookup.from_checkpoint(checkpoint, which.step, which.where, by=by)
    else:
        found = step_lookup.newest_step(RunDir(root), settle=True, step=which.step)
    found = with_extra_files(found, which.also)
    filled = fill_template(found, template, out, force=force, spared=which.spared)
    audit = last_audit(RunDir(root)) if checkpoint is None else None
    audited = audit.step if audit is not None and audit.passed else None
    if as_json:
        result = {
            "step": filled.step,
            "out": str(out),
            "from": found.where,
            "template": {"file": str(template), "step": filled.template_step},
            "replaced": filled.replaced,
            "kept": filled.kept,
            "assumed": (*found.assumed, *filled.assumed),
            "not_full": filled.not_full,
            "older": filled.older,
            "untold": filled.untold,
            "audited": audited,
        }
        print(msgspec.json.encode(result).decode())
        return 0
    print_line(f"{out}: step {filled.step} of {found.where}, in the form of {template}")
    say_lacks(filled)
    for part in filled.replaced:
        print_line(f"  now of step {filled.step}: {part}")
    for part in filled.kept:
        print_line(f"  as the template has it: {part}")
    for finding in (*found.assumed, *filled.assumed):
        print_line(f"  assumed: {finding}")
    if checkpoint is None and audited is None:
        print_line("  never audited: flowcheck audit FILE compares it with the trainer's own file")
    return 0


def say_lacks(filled: template_fill.FillReport) -> None:
    """Says what of a file is not of its step."""
    if filled.not_full:
        print_line(f"  NOT a full resume: {'; '.join(map(str, filled.not_full))}")
    for name, of in filled.older.items():
        if name not in filled.untold:
            print_line(f"  of step {of}: {name}")


def fill_template(
    found: step_lookup.FoundStep,
    template: Path,
    out: Path,
    *,
    force: bool = True,
    spared: Sequence[ProtectedPath] = (),
) -> template_fill.FillReport:
    """Writes a step to `out` in the form of the trainer's checkpoint `template`. Raises StateError
    where it does not fit, or tells other settings of the optimizer than are stated, ConfigError
    where nothing may take the place of what is at `out`."""
    taken = found.snapshot
    order = optimizer_numbering(taken.optimizer, taken.layout)
    pattern = load_template(template, taken.layout, found.names, order=order)
    settings = (
        ParamGroupSettings(taken.optimizer, taken.layout) if not taken.parameters_only else None
    )
    rate = settings.rate if settings is not None else lambda step: 0.0
    if settings is not None:
        check_groups(pattern, taken.optimizer, settings, str(template))
    filled = template_fill.fill(pattern, taken, rate, settings, found.seen)
    make_folder(out.parent)
    template_fill.write(pattern.tree, out, force=force, spared=spared)
    return filled
