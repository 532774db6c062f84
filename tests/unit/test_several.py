"""Settings of several jobs on the same ports: what is refused, and what each of them gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.refused_as import Wanted, like, refused_as

from flowcheck.config import JobConfig, load_job
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    CLIP_OF_ONE_RING,
    CLIP_OF_OTHER_SETTINGS,
    CLIP_ORDER,
    CLIP_SCOPE,
    NOT_STATED,
    NOT_WITH,
)
from flowcheck.findings.catalog.refused_settings import FROM_TO, JOB_NAME, JOBS_ALIKE
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.job_setup.multi_job_setup import job_settings
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.stages.job_learning.remembered_job import may_join_midstream
from flowcheck.stages.run_directory.job_run_dirs import job_count, job_folder_name

SOURCE = '[[source]]\ninterface = "m0"\n'
SGD = 'name = "sgd"\nlearning_rate = 0.1\n'
TOGETHER = f"{SGD}clip_norm = 1.0\nclip_together = true\n"
ADAM = 'name = "adam"\nlearning_rate = 0.2\n'


def settings(folder: Path, text: str) -> JobConfig:
    path = folder / "job.toml"
    path.write_text(text)
    return load_checked_job(path)


def refused(folder: Path, text: str, wanted: Wanted) -> None:
    with refused_as(wanted, kind=ConfigError):
        settings(folder, text)


def test_one_job_is_what_a_file_without_a_word_of_several_states(tmp_path: Path) -> None:
    config = settings(tmp_path, f"{SOURCE}[optimizer]\n{SGD}")
    assert not config.several and job_count(config) == 1
    assert job_settings(config, 1) is config


def test_rings_of_one_job_have_the_same_settings_and_folders_of_their_own(tmp_path: Path) -> None:
    text = f'jobs = 3\ncheckpoint = "/ck"\n{SOURCE}[optimizer]\n{SGD}'
    config = settings(tmp_path, text)
    own = [job_settings(config, number) for number in (1, 2, 3)]
    assert [one.checkpoint for one in own] == ["/ck/job-1", "/ck/job-2", "/ck/job-3"]
    assert all(one.together and one.late_join and one.several for one in own)


def test_jobs_told_apart_by_their_hosts_have_settings_of_their_own(tmp_path: Path) -> None:
    text = (
        f'checkpoint = "/ck"\n{SOURCE}'
        f'[[job]]\nname = "a"\nhosts = ["10.0.0.1"]\n[job.optimizer]\n{SGD}'
        f'[[job]]\nhosts = ["10.0.0.2"]\n[job.optimizer]\n{ADAM}'
    )
    config = settings(tmp_path, text)
    assert [job_folder_name(config, number) for number in (1, 2)] == ["a", "job-2"]
    one, two = (job_settings(config, number) for number in (1, 2))
    assert (one.optimizer and one.optimizer.name, one.hosts) == ("sgd", ("10.0.0.1",))
    assert (two.optimizer and two.optimizer.name, two.hosts) == ("adam", ("10.0.0.2",))
    assert not one.together


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"jobs = 0\n{SOURCE}[optimizer]\n{SGD}", like(FROM_TO, key="jobs")),
        (f"jobs = 65\n{SOURCE}[optimizer]\n{SGD}", like(FROM_TO, key="jobs")),
        (
            f"jobs = 2\n{SOURCE}[optimizer]\n{SGD}clip_norm = 1.0\n",
            like(CLIP_SCOPE, key="optimizer.clip_norm"),
        ),
        (
            f"jobs = 13\n{SOURCE}[optimizer]\n{TOGETHER}",
            like(CLIP_ORDER, key="optimizer.clip_order", value="[]", jobs=13),
        ),
        (
            f"jobs = 3\n{SOURCE}[optimizer]\n{TOGETHER}clip_order = [1, 2]\n",
            like(CLIP_ORDER, jobs=3),
        ),
        (
            f"jobs = 2\n{SOURCE}[optimizer]\n{TOGETHER}clip_alone = true\n",
            like(NOT_WITH, other="clip_alone"),
        ),
        (
            f"{SOURCE}[optimizer]\n{TOGETHER}[[job]]\nhosts = ['10.0.0.1']\n"
            f"[job.optimizer]\n{TOGETHER}[[job]]\nhosts = ['10.0.0.2']\n",
            CLIP_OF_OTHER_SETTINGS,
        ),
        (
            f"{SOURCE}[[job]]\n[job.optimizer]\n{SGD}[[job]]\n",
            like(NOT_STATED, key="optimizer"),
        ),
        (
            f"{SOURCE}[[job]]\n[job.optimizer]\n{SGD}[[job]]\n[job.optimizer]\n{ADAM}",
            JOBS_ALIKE,
        ),
        (
            f'{SOURCE}[[job]]\nhosts = ["10.0.0.1"]\n[job.optimizer]\n{SGD}'
            f'[[job]]\nhosts = ["10.0.0.1", "10.0.0.2"]\n[job.optimizer]\n{ADAM}',
            JOBS_ALIKE,
        ),
        (
            f'{SOURCE}[optimizer]\n{SGD}[[job]]\nname = "a/b"\n[[job]]\n',
            like(JOB_NAME, value="'a/b'"),
        ),
    ],
)
def test_what_no_port_tells_is_refused(tmp_path: Path, text: str, wanted: Wanted) -> None:
    refused(tmp_path, text, wanted)


def test_rings_that_are_clipped_together_are_not_joined_amid_their_run(tmp_path: Path) -> None:
    config = settings(tmp_path, f"jobs = 2\n{SOURCE}[optimizer]\n{TOGETHER}")
    assert config.late_join and not may_join_midstream(job_settings(config, 2))
    config = settings(tmp_path, f"{SOURCE}[optimizer]\n{TOGETHER}")
    with refused_as(CLIP_OF_ONE_RING, kind=ConfigError):
        create_run(config, tmp_path / "run")


def test_a_norm_of_each_jobs_own_parameters_may_clip_it(tmp_path: Path) -> None:
    text = f"jobs = 2\n{SOURCE}[optimizer]\n{SGD}clip_norm = 1.0\nclip_alone = true\n"
    assert settings(tmp_path, text).several
    (tmp_path / "job.toml").write_text(f"{SOURCE}[optimizer]\n{SGD}clip_norm = 1.0\n")
    assert not load_job(tmp_path / "job.toml").several
