"""Folders of `flowcheck up` that are not as wanted: one that refuses, one that others remove."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support import preloaded

from flowcheck.errors import StateError
from flowcheck.findings.catalog.how_chains_end import NO_CHECKPOINT_THERE
from flowcheck.ops.lifecycle import leftover_memory, shutdown_cleanup
from flowcheck.stages.run_directory.run_dir import RunDir


def test_a_checkpoint_the_wanted_folder_refuses_goes_below_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def save(config: object, run: RunDir, directory: Path, step: int | None) -> Path:
        tried.append(directory)
        if len(tried) < 3:
            raise StateError(f"{directory}: a checkpoint of another run is already here")
        return directory / "step-9"

    monkeypatch.setattr(shutdown_cleanup, "_stepped", lambda run: True)
    monkeypatch.setattr(shutdown_cleanup, "save_checkpoint", save)
    kept = shutdown_cleanup.save_replica(
        SimpleNamespace(persist=None, checkpoint="/wanted"), RunDir(tmp_path)
    )  # type: ignore[arg-type]
    assert tried == [Path("/wanted"), tmp_path / "rescued", tmp_path / "rescued1"]
    assert kept is not None and kept.folder == tmp_path / "rescued1" / "step-9"
    assert kept.why is not None and kept.why.is_any_of(NO_CHECKPOINT_THERE)
    assert kept.why.arguments["folder"] == "/wanted"


def test_leftovers_somebody_else_removes_meanwhile_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        leftover_memory, "stale_memory", lambda mounts: [tmp_path / "flowcheck-1-1-0"]
    )
    assert leftover_memory.find_leftover_memory() == []


@pytest.mark.parametrize("port", ['interface = "nosuch0"', 'pci = "0000:ff:1f.7"'])
def test_a_port_that_is_not_there_leaves_no_folder_behind(tmp_path: Path, port: str) -> None:
    """As root too, who makes the folders of a chain for its user."""
    job = tmp_path / "job.toml"
    job.write_text(
        f'run = "{tmp_path}/runs/job"\ncheckpoint = "{tmp_path}/checkpoints/job"\n'
        f'[[source]]\n{port}\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
    )
    words = ["up", str(job)]
    done = preloaded.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and f"source.{port.split(maxsplit=1)[0]} = " in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]
