"""Records of a chain that runs for months: bounded, the newest kept, never torn."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.refused_as import refused_as

from flowcheck.config import (
    JobConfig,
    OptimizerConfig,
    RingConfig,
    SourceConfig,
    StagingConfig,
    encode_config,
)
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_commands import LEARNED_MISSING
from flowcheck.messages import AuditRecord, parse_audit_record
from flowcheck.ops.lifecycle import chain_runner
from flowcheck.private_files import append_private
from flowcheck.replica.state_file import digest_log
from flowcheck.replica.state_file.digest_log import DigestLog, digests_at
from flowcheck.stages.run_directory import bounded_log_files
from flowcheck.stages.run_directory.bounded_log_files import (
    append_line,
    complete_lines,
    last_complete_line,
    shorten,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor import supervisor

MOST = 10_000


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_bytes().splitlines()]


def test_a_file_of_lines_keeps_its_newer_half_and_no_line_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    sizes = []
    for step in range(1, 301):
        line = json.dumps({"step": step, "digest": "x" * (step % 50)}).encode()
        append_line(path, line, MOST)
        assert last_complete_line(path) == line
        sizes.append(path.stat().st_size)
        steps = steps_in(path)
        assert steps == list(range(steps[0], step + 1)), "the newest, without a gap"
    assert max(sizes) <= MOST
    assert min(sizes[-20:]) >= MOST // 2 - 100
    assert os.listdir(tmp_path) == ["steps.jsonl"]  # noqa: PTH208


def test_one_line_longer_than_all_there_may_be_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(3):
        append_line(path, b'{"x":"' + b"y" * 3 * MOST + b'"}', MOST)
        assert path.stat().st_size <= MOST


def test_the_last_whole_line_is_found_from_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    assert last_complete_line(path) is None
    path.write_bytes(b"")
    assert last_complete_line(path) is None
    path.write_bytes(b'{"step":1}\n{"step":2}\n{"st')
    assert last_complete_line(path) == b'{"step":2}'
    long = b'{"x":"' + b"y" * 200_000 + b'"}'
    path.write_bytes(b'{"step":1}\n' + long + b"\n" + b"torn" * 50_000)
    assert last_complete_line(path) == long


def test_a_log_is_shortened_under_the_hands_of_the_process_that_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "parse-0.log"
    shorten(path, MOST)
    script = (
        "import sys\n"
        "for number in range(20_000):\n"
        "    print(f'line {number} of many', flush=True)\n"
        "print('written', file=sys.stderr, flush=True)\n"
        "sys.stdin.read()\n"
        "print('line after the last look')\n"
    )
    pipe = subprocess.PIPE
    with path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=pipe, stdout=log, stderr=pipe
        )
    while not select.select([process.stderr], [], [], 0)[0]:
        shorten(path, MOST)
    process.communicate()
    assert process.returncode == 0
    shorten(path, MOST)
    lines = path.read_bytes().splitlines()
    assert path.stat().st_size <= MOST
    assert b"line after the last look" in lines and len(lines) > 1
    assert not any(b"\0" in line for line in lines), "it was truncated, and went on at its old end"


def test_the_supervisor_bounds_its_stages_logs(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.Supervisor, "_spawn", lambda _: None)
    config = JobConfig(
        source=(SourceConfig(file="none"),),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    )
    run = RunDir.create(tmp_path / "run", shm)
    run.log("extract").write_bytes(b"word\n" * (bounded_log_files.LOG_BYTES // 4))
    one = supervisor.Supervisor(run, config)
    one.work()
    assert (
        bounded_log_files.LOG_BYTES // 4
        < run.log("extract").stat().st_size
        < bounded_log_files.LOG_BYTES
    )
    run.remove()


def test_a_trace_keeps_its_newest_records_and_goes_on_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_log, "BYTES_MAX", 2000)
    path = tmp_path / "trace"
    digests = {step: [bytes([step, i]) * 8 for i in range(3)] for step in range(1, 101)}
    mine = DigestLog(path, 3)
    for step, own in digests.items():
        if step == 60:
            mine.close()
            mine = DigestLog(path, 3)
        mine.append(step, own)
        assert path.stat().st_size <= 2000
    mine.close()
    kept = [step for step in digests if digests_at(path, step) is not None]
    assert kept == list(range(kept[0], 101)) and 12 < len(kept) < 40
    assert all(digests_at(path, step) == digests[step] for step in kept)
    assert path.stat().st_mode & 0o077 == 0
    assert os.listdir(tmp_path) == ["trace"]  # noqa: PTH208


def test_the_records_of_the_run_before_outlast_the_next_start_and_no_other(
    tmp_path: Path, shm: Path
) -> None:
    config = JobConfig(
        source=(SourceConfig(file="none"),),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    )
    for number in range(3):
        run = RunDir.create(tmp_path / "run", shm)
        run.config.write_bytes(encode_config(config))
        assert not run.steps.exists() and not run.log("update").exists()
        if number:
            assert (run.previous / "update.log").read_text() == f"word {number - 1}"
            assert (run.previous / "steps.jsonl").read_text() == f"{number - 1}"
        run.log("update").write_text(f"word {number}")
        run.steps.write_text(f"{number}")
        (run.root / "rescued").mkdir(exist_ok=True)
        run.remove(keep_records=True)
    run.remove()
    assert os.listdir(run.root) == ["rescued"]  # noqa: PTH208


def test_a_learned_job_may_lie_in_the_run_directory_it_is_to_be_used_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_runner, "decode_job", lambda text: None)
    run = RunDir(tmp_path / "run")
    config = JobConfig(
        source=(SourceConfig(file="none"),),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
        learned=str(run.learned_job),
        ring=RingConfig(slots=64),
        staging=StagingConfig(size_bytes=1 << 20),
    )
    run.learned_folder.mkdir(parents=True)
    run.learned_job.write_bytes(b"the job")
    with refused_as(LEARNED_MISSING, kind=ConfigError, value=re.compile(r"weights\.bin")):
        chain_runner.create_run(config, run.root)
    run.weights.write_bytes(b"its weights")
    made, _ = chain_runner.create_run(config, run.root)
    assert (made.learned_job.read_bytes(), made.weights.read_bytes()) == (
        b"the job",
        b"its weights",
    )
    made.remove()


BRACED = b'{"step":3,"file":"/runs/{a}/{b}.pt","request":"{}","at":6}'
"""Torn behind some of its bytes it ends in a brace all the same."""


def test_a_line_that_a_kill_tore_at_any_byte_is_none_and_the_next_one_is(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    first, later = b'{"step":1}', b'{"step":4,"of":{}}'
    for cut in range(len(BRACED)):
        path.write_bytes(first + b"\n" + BRACED[:cut])
        assert last_complete_line(path) == first, BRACED[:cut]
        assert complete_lines(path) == [first], BRACED[:cut]
        append_line(path, later, MOST)
        assert last_complete_line(path) == later
        assert complete_lines(path) == [first, later], BRACED[:cut]


def test_a_line_that_several_append_to_is_ended_where_one_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "audits"
    line = msgspec.json.encode(AuditRecord(step=7, passed=True, file="/a/{b}", tensors=1))
    for cut in range(len(line)):
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(line[:cut])
        append_private(path, line)
        assert [parse_audit_record(one) for one in path.read_bytes().splitlines()][
            -1
        ] is not None, line[:cut]
        assert last_complete_line(path) == line
