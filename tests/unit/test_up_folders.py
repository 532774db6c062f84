"""Folders of `flowcheck up` that are not as wanted: one that refuses, one that others remove."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flowcheck.errors import StateError
from flowcheck.ops.running import leftovers, remains
from flowcheck.stages.rundir import RunDir


def test_a_checkpoint_the_wanted_folder_refuses_goes_below_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def save(config: object, run: RunDir, directory: Path, step: int | None) -> Path:
        tried.append(directory)
        if len(tried) < 3:
            raise StateError(f"{directory}: a checkpoint of another run is already here")
        return directory / "step-9"

    monkeypatch.setattr(remains, "_stepped", lambda run: True)
    monkeypatch.setattr(remains, "save_checkpoint", save)
    kept = remains.keep(SimpleNamespace(persist=None, checkpoint="/wanted"), RunDir(tmp_path))  # type: ignore[arg-type]
    assert tried == [Path("/wanted"), tmp_path / "rescued", tmp_path / "rescued1"]
    assert kept is not None and kept.folder == tmp_path / "rescued1" / "step-9"
    assert kept.why.startswith("no checkpoint in /wanted: ")


def test_leftovers_somebody_else_removes_meanwhile_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "stale_memory", lambda mounts: [tmp_path / "flowcheck-1-1-0"])
    assert leftovers.find() == []
