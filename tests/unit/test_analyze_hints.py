"""What is stated of a capture and is of another job, said beside what the capture holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.config import JobTableConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.collective_evidence import END_OPEN
from flowcheck.findings.catalog.job_selection_reasons import HOSTS_NOT_USED, JOB_READ, ONLY_JOB
from flowcheck.findings.catalog.nccl_transport import ANOTHER_JOB
from flowcheck.findings.catalog.refused_settings import HOST_ADDRESS
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap
from flowcheck.ops.analysis.analysis_report import _lost
from flowcheck.ops.analysis.job_hints import hints_from_job_file, hints_from_options
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.restore.multi_job_restore import template_count_finding
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.stages.job_learning.job_selection import JobSelector, select_job
from flowcheck.wire.learn import Reading

SGD = '[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
RINGS = "n [0] NCCL INFO Channel 00/01 : 0 1 2 3\n"


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("asked") / "job.pcap"
    write_pcap(path, make_traffic(SyntheticJob(steps=2)).frames_at_port(0))
    return path


@pytest.fixture(scope="module")
def reading(capture: Path) -> Reading:
    return hints_from_options(None, None).read(read_capture_files([capture]))


def test_a_log_of_another_job_is_told_wherever_it_is_named(
    capture: Path, reading: Reading, tmp_path: Path
) -> None:
    log, job = tmp_path / "rank0.log", tmp_path / "job.toml"
    log.write_text(RINGS)
    job.write_text(f'nccl_log = "{log}"\n{SGD}')
    [by_file] = hints_from_job_file(job, [capture]).contradictions(reading)
    assert by_file == ANOTHER_JOB(logged=(4,), seen=(2,))
    assert hints_from_options(None, log).contradictions(reading) == [by_file]


def test_hosts_that_no_job_uses_are_told_with_those_seen(
    capture: Path, reading: Reading, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f'hosts = ["10.9.9.9"]\n{SGD}')
    [told] = hints_from_job_file(job, [capture]).contradictions(reading)
    seen = ("fe80::a00:1", "fe80::a00:2")
    assert told == HOSTS_NOT_USED(
        hosts=("10.9.9.9",), job=ONLY_JOB(), addresses=seen, missing=("10.9.9.9",)
    )
    job.write_text(f'{SGD}[[job]]\nhosts = ["FE80:0::A00:1"]\n')
    assert not hints_from_job_file(job, [capture]).contradictions(reading)


def test_a_job_with_other_hosts_than_stated_is_not_followed_and_both_are_named(
    reading: Reading,
) -> None:
    asked = JobSelector(JobTableConfig(hosts=("fe80::a00:1", "10.9.9.9")))
    found = select_job(reading, asked)
    [why] = found.why_not
    stated, seen = ("fe80::a00:1", "10.9.9.9"), ("fe80::a00:1", "fe80::a00:2")
    assert found.job is None and why == HOSTS_NOT_USED(
        hosts=stated, job=JOB_READ(), addresses=seen, missing=("10.9.9.9",)
    )
    assert (
        select_job(reading, JobSelector(JobTableConfig(hosts=("fe80::a00:1",)))).job == reading.job
    )


def test_hosts_are_addresses(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f'[[source]]\ninterface = "m0"\n{SGD}[[job]]\nhosts = ["node1"]\n')
    with refused_as(HOST_ADDRESS, kind=ConfigError, key="job.hosts", value="'node1'"):
        load_checked_job(job)


def test_an_end_that_nothing_tells_is_no_loss(reading: Reading) -> None:
    whole = reading.collectives[-1]
    short = replace(whole, bytes=8, missing=((0, 8),), assumed=(END_OPEN(1, 8),))
    [told] = _lost(replace(reading, collectives=(short,)))
    assert "ends somewhere in bytes [0, 8), its last line" in told
    [told] = _lost(replace(reading, collectives=(replace(short, assumed=()),)))
    assert told.endswith("bytes [0, 8) are missing")


@pytest.mark.parametrize(
    ("given", "jobs", "told", "do"),
    [
        (2, 1, "2 checkpoints, and one job was followed", "Give one of it."),
        (
            1,
            2,
            "1 checkpoint, and 2 jobs were followed",
            "Give one of each job: `--template FILE`, once for each.",
        ),
    ],
)
def test_templates_are_counted_in_words(given: int, jobs: int, told: str, do: str) -> None:
    found = template_count_finding(given, jobs)
    assert (str(found), found.remedy) == (told, do)
