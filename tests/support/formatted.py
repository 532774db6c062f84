"""A step that every format takes, and verbs tried on it."""

from __future__ import annotations

from pathlib import Path

from support.steps import given_of, layout_of, made, trained
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.ops.restore.single_step_restore import write_filled_template
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.overwrite_guard import OutputTarget
from flowcheck.vault.trainer_checkpoint.template_fill import FillReport

BEFORE, AFTER = 3, 6
WHOLE = ("flowcheck", "torch", "dcp")
"""Formats of a full resume, in one process."""
ALONE = ("safetensors", "huggingface")


def step_before() -> CheckpointContents:
    """Step BEFORE of a small training."""
    net, optimizer = made()
    trained(net, optimizer, 1, BEFORE)
    return contents_of(given_of(net, optimizer, BEFORE), layout_of(net))


def fill(found: FoundStep, template: Path, out: Path) -> FillReport:
    """The step in the form of a trainer's file, over whatever of ours is there."""
    return write_filled_template(found, template, OutputTarget(path=out, folder=False, force=True))


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout
