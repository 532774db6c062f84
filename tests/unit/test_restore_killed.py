"""SIGKILL in front of each rename that gives an output its name: verify says what to do, and that
does it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from support.formatted import BEFORE, run, step_before
from support.refused_as import like, refused_as

from flowcheck.atomic_write import atomic_path_per_process
from flowcheck.findings.catalog.checkpoint_damage import MANIFEST_UNREADABLE
from flowcheck.findings.catalog.refused_restores import (
    BEING_WRITTEN,
    COMPLETE_BY_MANIFEST,
    COMPLETE_IN_FOLDER,
)
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.checkpoint_io import write


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    return step_before()


def killed(step: CheckpointContents, out: Path, form: str, before: str) -> None:
    """Writes in a process that ends right before something gets the name `before`."""
    child = os.fork()
    if not child:
        give = Path.replace

        def replace(self: Path, target: str | os.PathLike[str]) -> Path:
            if Path(target).name == before:
                os.kill(os.getpid(), signal.SIGKILL)
            return give(self, target)

        Path.replace = replace  # type: ignore[method-assign]
        try:
            write(step, out, form, force=True)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("form", "before", "there"),
    [
        ("torch", "out.manifest.json", False),
        ("torch", "out", True),
        ("dcp", "out", True),
    ],
)
def test_verify_tells_what_is_whole_and_how_it_gets_its_name(
    step: CheckpointContents, tmp_path: Path, form: str, before: str, there: bool
) -> None:
    out = tmp_path / "out"
    if there:
        write(step, out, form)
    killed(step, out, form, before)
    with refused_as(
        like(COMPLETE_BY_MANIFEST, step=BEFORE), like(COMPLETE_IN_FOLDER, step=BEFORE), output=out
    ) as told:
        run("verify", out)
    (whole, *_) = told.value.finding.arguments["left"]
    subprocess.run(shlex.split(whole.arguments["command"]), check=True)
    assert run("verify", out)[0] == 0
    if form == "torch":
        assert torch.load(out)["step"] == BEFORE


def test_what_a_killed_restore_had_set_aside_goes_with_the_next_and_nothing_else(
    step: CheckpointContents, tmp_path: Path
) -> None:
    out, own = tmp_path / "out", tmp_path / ".out.manifest.json.1.old.tmp"
    write(step, out, "torch")
    own.write_text("a user's")
    killed(step, out, "torch", "out")
    left = {path.name for path in tmp_path.iterdir()}
    assert any(re.fullmatch(r"\.out\.manifest\.json\.\d{2,}\.old\.tmp", name) for name in left)
    write(step, out, "torch", force=True)
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"out", "out.manifest.json", own.name}
    assert own.read_text() == "a user's" and run("verify", out)[0] == 0


def test_what_speaks_of_another_file_or_is_being_written_is_not_named_as_whole(
    step: CheckpointContents, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed(step, out, "torch", "out.manifest.json")
    with out.open("r+b") as file:
        file.write(b"x")
    with refused_as(MANIFEST_UNREADABLE, manifest="out.manifest.json"):
        run("verify", out)
    with (
        atomic_path_per_process(tmp_path / "new", folder=True),
        refused_as(BEING_WRITTEN),
    ):
        run("verify", tmp_path / "new")
