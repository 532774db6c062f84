"""`flowcheck restore --template`: a step in the form of the trainer's own checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.ops.giving import steps
from flowcheck.ops.giving.also import with_also
from flowcheck.ops.running.chain import last_audit
from flowcheck.ops.say import say
from flowcheck.private_files import make_folder
from flowcheck.replica.rules.settings import Settings, numbering
from flowcheck.stages.rundir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault import restore
from flowcheck.vault.groups import check_groups
from flowcheck.vault.overwriting import Spared, check_out
from flowcheck.vault.template import load_template


@dataclass(frozen=True, slots=True)
class Which:
    """The step that is asked for."""

    checkpoint: Path | None = None
    """A checkpoint's folder, or one of them; None: of the run."""
    step: Step | None = None
    """None: the newest."""
    where: str | None = None
    """What the checkpoint's folder is called to the user."""
    spared: tuple[Spared, ...] = ()
    """What it, or what it is filled into, lies in."""
    also: tuple[Path, ...] = ()
    """More checkpoints of the trainer's, of other steps."""
    code: bool = False
    """Code that the checkpoint names is run: the user vouches for it."""


def run(root: Path, template: Path, out: Path, *, which: Which, force: bool, as_json: bool) -> int:
    """Writes `out`. Raises ConfigError, StateError where there is no step or it does not fit."""
    check_out(out, force=force, folder=False, spared=which.spared)
    checkpoint = which.checkpoint
    if template.is_dir():
        right = "is a folder: --format NAME --like FOLDER writes one in its place"
        raise ConfigError("--template", str(template), right)
    if checkpoint is not None:
        by = steps.stated_for(checkpoint, root, code=which.code)
        found = steps.from_checkpoint(checkpoint, which.step, which.where, by=by)
    else:
        found = steps.newest(RunDir(root), settle=True, step=which.step)
    found = with_also(found, which.also)
    filled = give_back(found, template, out, force=force, spared=which.spared)
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
        print(json.dumps(result))
        return 0
    say(f"{out}: step {filled.step} of {found.where}, in the form of {template}")
    say_lacks(filled)
    for part in filled.replaced:
        say(f"  now of step {filled.step}: {part}")
    for part in filled.kept:
        say(f"  as the template has it: {part}")
    for sentence in (*found.assumed, *filled.assumed):
        say(f"  assumed: {sentence}")
    if checkpoint is None and audited is None:
        say("  never audited: flowcheck audit FILE compares it with the trainer's own file")
    return 0


def say_lacks(filled: restore.Filled) -> None:
    """Says what of a file is not of its step."""
    if filled.not_full:
        say(f"  NOT a full resume: {filled.not_full}")
    for name, of in filled.older.items():
        if name not in filled.untold:
            say(f"  of step {of}: {name}")


def give_back(
    found: steps.Found,
    template: Path,
    out: Path,
    *,
    force: bool = True,
    spared: Sequence[Spared] = (),
) -> restore.Filled:
    """Writes a step to `out` in the form of the trainer's checkpoint `template`. Raises StateError
    where it does not fit, or tells other settings of the optimizer than are stated, ConfigError
    where nothing may take the place of what is at `out`."""
    taken = found.snapshot
    order = numbering(taken.optimizer, taken.layout)
    pattern = load_template(template, taken.layout, found.names, order=order)
    settings = Settings(taken.optimizer, taken.layout) if not taken.parameters_only else None
    rate = settings.rate if settings is not None else lambda step: 0.0
    if settings is not None:
        check_groups(pattern, taken.optimizer, settings, str(template))
    filled = restore.fill(pattern, taken, rate, settings, found.seen)
    make_folder(out.parent)
    restore.write(pattern.tree, out, force=force, spared=spared)
    return filled
