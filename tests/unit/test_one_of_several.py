"""Of a chain that follows several jobs one is given back, or served, by its name or number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from support.fetching import served
from support.persisting import learn, replica_of, run_with_replica, take
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_restores import WHICH_JOB_AS
from flowcheck.findings.catalog.run_directories import NO_SUCH_JOB
from flowcheck.stages.checkpointing.serve_stage import catalogues_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.download.checkpoint_download import download_step

SEVERAL = (
    '[serve]\nport = 0\n[[job]]\nname = "dense"\nhosts = ["10.0.0.1"]\n'
    '[[job]]\nname = "other"\nhosts = ["10.0.0.2"]\n'
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """Of two jobs, at steps 2 and 5."""
    made = run_with_replica(tmp_path / "run", tmp_path, SEVERAL, 1000)
    learn(made.job_run_dir(2), 2000)
    for each, steps in ((made, 2), (made.job_run_dir(2), 5)):
        with closing(replica_of(each)) as replica:
            take(replica, steps)
    yield made
    made.job_run_dir(2).remove()
    made.remove()


def restored(run: RunDir, out: Path, *words: str) -> tuple[int, int]:
    """(step, elements)."""
    own = ["restore", "--run", str(run.root), "--format", "torch", "--out", str(out), *words]
    done = CliRunner().invoke(app, own)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.stdout
    tree = torch.load(out, weights_only=True)
    return tree["step"], sum(value.numel() for value in tree["model"].values())


def test_one_job_of_several_is_given_back_by_name_or_number(run: RunDir, tmp_path: Path) -> None:
    assert restored(run, tmp_path / "a", "--job", "other") == (5, 2000)
    assert restored(run, tmp_path / "b", "--job", "2", "--step", "4") == (4, 2000)
    assert restored(run, tmp_path / "c", "--job", "1") == (2, 1000)
    with refused_as(WHICH_JOB_AS, kind=ConfigError, jobs="dense or other"):
        restored(run, tmp_path / "d")
    with refused_as(NO_SUCH_JOB, kind=ConfigError, jobs=("dense", "other")):
        restored(run, tmp_path / "d", "--job", "3")
    assert not (tmp_path / "d").exists()


def test_each_jobs_steps_in_memory_are_served_under_its_own_path(
    run: RunDir, tmp_path: Path
) -> None:
    config = run.settings()
    assert config.serve is not None
    catalogues = catalogues_of(run, config, config.serve)
    assert isinstance(catalogues, dict)
    with served(catalogues) as url:
        assert download_step(f"{url}/jobs/other", "latest", tmp_path / "got").name == "step-5"
        assert download_step(f"{url}/jobs/dense", "latest", tmp_path / "got").name == "step-2"
