"""What the lab takes away for a new run: what an earlier one made, where that was asked for."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import (
    OUT_FILE_EXISTS,
    OUT_HAS_LIVE_RUN,
    OUT_HOLDS_RUN,
    OUT_NOT_A_FOLDER,
    OUT_NOT_OF_LAB,
    OUT_NOT_PLAIN,
    OUT_NOT_REPLACEABLE,
)
from flowcheck.findings.finding import Finding
from flowcheck.lab import cluster
from flowcheck.lab.cli import app
from flowcheck.lab.job_run.output_folders import make_empty_folders
from flowcheck.stages.run_directory.run_dir import RunDir


class ClusterMadeError(Exception):
    """Nothing was refused before."""


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody makes a cluster here."""

    def made(*_: Any) -> None:
        raise ClusterMadeError

    monkeypatch.setattr(cluster, "up", made)
    monkeypatch.setattr(cluster, "down", made)
    monkeypatch.setattr(cluster, "reserved", lambda name: nullcontext())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def parts(out: Path) -> tuple[Path, Path]:
    return out / "trainers", out / "services"


def refusal(verb: str, *words: str | Path) -> Finding | None:
    """Why the lab does not run; None where it would."""
    error = CliRunner().invoke(app, [verb, *map(str, words)]).exception
    if isinstance(error, ClusterMadeError):
        return None
    assert isinstance(error, ConfigError), error
    return error.right


@pytest.mark.parametrize("verb", ["train", "cost"])
def test_what_somebody_keeps_there_stays_whatever_is_typed(verb: str, out: Path) -> None:
    kept = out / "services" / "run" / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    for words in ((), ("--force",)):
        said = refusal(verb, "--out", out, *words)
        assert said == OUT_NOT_OF_LAB(out / "services")
    linked = out.with_name("linked")
    linked.mkdir()
    (linked / "trainers").symlink_to(out / "services")
    said = refusal(verb, "--out", linked, "--force")
    assert said == OUT_NOT_PLAIN(linked / "trainers")
    assert refusal(verb, "--out", kept, "--force") == OUT_NOT_A_FOLDER()
    assert kept.read_text() == "mine"
    own = out.rename(out.with_name(f"lab-{'run' if verb == 'train' else verb}"))
    said = refusal(verb)
    assert said == OUT_NOT_OF_LAB(own / "services"), "nor in the folder it takes by itself"


@pytest.mark.parametrize("verb", ["train", "cost"])
def test_an_earlier_run_goes_when_that_is_asked_for(verb: str, out: Path) -> None:
    make_empty_folders(out, parts(out), force=False)
    (out / "trainers" / "step-4.pt").write_text("a step")
    said = refusal(verb, "--out", out)
    assert said == OUT_HOLDS_RUN(out / "trainers")
    assert (out / "trainers" / "step-4.pt").exists()
    assert not refusal(verb, "--out", out, "--force")
    assert not refusal(verb, "--out", out.with_name("new"))
    out.rename(out.with_name(f"lab-{'run' if verb == 'train' else verb}"))
    assert not refusal(verb), "its own folder's runs replace each other"


def test_nothing_goes_beside_a_run_and_nothing_of_one_that_goes_on(out: Path) -> None:
    make_empty_folders(out, parts(out), force=False)
    (out / "mine.txt").write_text("mine")
    (out / "trainers" / "step-4.pt").write_text("a step")
    with pytest.raises(ConfigError) as caught:
        make_empty_folders(out, parts(out), force=False)
    assert caught.value.right in [OUT_HOLDS_RUN(part) for part in parts(out)]
    run = RunDir(out / "services" / "run")
    run.pids.mkdir(parents=True)
    run.note_pid("supervisor", os.getpid())
    with pytest.raises(ConfigError) as caught:
        make_empty_folders(out, parts(out), force=True)
    assert caught.value.right == OUT_HAS_LIVE_RUN(pid=os.getpid(), path=out / "services")
    assert (out / "trainers" / "step-4.pt").exists()
    (run.pids / "supervisor").unlink()
    make_empty_folders(out, parts(out), force=True)
    assert sorted(path.name for path in out.iterdir()) == ["mine.txt", "services", "trainers"]
    assert not (out / "trainers" / "step-4.pt").exists()


def test_a_recording_goes_only_where_that_is_asked_for_and_never_another_s_job_file(
    out: Path,
) -> None:
    capture, job = out.with_name("v2.1.pcapng"), out.with_name("v2.1.toml")
    named = out.with_name("v2.1")
    job.write_text("a user's")
    assert not refusal("record", "--script", __file__, "--out", named), "its job file is the user's"
    assert refusal("record", "--out", named) == OUT_FILE_EXISTS(job)
    job.unlink()
    capture.write_text("an earlier one")
    for way in (named, capture):
        assert refusal("record", "--out", way) == OUT_FILE_EXISTS(capture)
    assert not refusal("record", "--out", named, "--force")
    assert capture.read_text() == "an earlier one", "it goes when there is another"
    capture.unlink()
    capture.symlink_to(job)
    for words in (("--force",), ()):
        said = refusal("record", "--out", named, *words)
        assert said == OUT_NOT_REPLACEABLE(capture), "--force replaces no link"


@pytest.mark.parametrize("there", ["nothing", "folder", "script"])
def test_a_script_is_looked_at_before_the_cluster_is_made(out: Path, there: str) -> None:
    script = out.parent / "train.py"
    if there == "folder":
        script.mkdir()
    elif there == "script":
        script.touch()
    words = ["record", "--out", str(out), "--script", str(script)]
    error = CliRunner().invoke(app, words).exception
    if there == "script":
        assert isinstance(error, ClusterMadeError), error
    else:
        assert isinstance(error, OSError) and error.filename == str(script)
