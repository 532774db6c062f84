"""A step that every format takes, and verbs tried on it."""

from __future__ import annotations

from support.steps import given_of, layout_of, made, trained
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of

BEFORE, AFTER = 3, 6
WHOLE = ("flowcheck", "torch", "dcp")
"""Formats of a full resume, in one process."""
ALONE = ("safetensors", "huggingface")


def step_before() -> CheckpointContents:
    """Step BEFORE of a small training."""
    net, optimizer = made()
    trained(net, optimizer, 1, BEFORE)
    return contents_of(given_of(net, optimizer, BEFORE), layout_of(net))


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout
