"""Commands and settings that messages name are those of the run, and advice is given once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.refused_as import like, refused_as
from test_cli import flowcheck
from typer.main import get_command

from flowcheck.cli.main import app
from flowcheck.config import JobConfig, RingConfig, StagingConfig, job_from
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.base_checkpoints import NO_REPLICA, NO_REPLICA_YET
from flowcheck.findings.catalog.checkpoint_stores import NEEDS_OPTIONS, OPTIONS_MISSING
from flowcheck.findings.catalog.how_chains_end import SIGNAL_INT
from flowcheck.findings.catalog.refused_restores import REPLAY_SAVED_NOTHING
from flowcheck.findings.catalog.refused_settings import SEVERAL_SOURCE_KINDS
from flowcheck.findings.catalog.shared_memory_files import PAGES_SMALL, TOO_FEW_HUGE_PAGES
from flowcheck.findings.catalog.starting_a_chain import NO_INTERFACE, RINGS_TOO_LARGE
from flowcheck.ops.job_setup.capture_port_check import check_capture_ports
from flowcheck.ops.lifecycle import replay_command
from flowcheck.ops.lifecycle.chain_runner import _largest_setting, create_run, shared_memory_need
from flowcheck.ops.lifecycle.shutdown_record_writer import record_failed_end
from flowcheck.ops.lifecycle.status_command import print_state, read_chain
from flowcheck.ops.restore.single_step_restore import _applied
from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.ops.trainer_checkpoint import audit_command
from flowcheck.ops.watch.state.chain_state import ReplayOptions

ROOT = Path(__file__).resolve().parents[2]
CONFIG = job_from({"source": [{"file": "x"}], "optimizer": {"name": "sgd", "learning_rate": 0.1}})


def test_a_failed_replay_is_repeated_with_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = create_run(CONFIG, tmp_path / "run")
    run.steps.write_text('{"step":5,"digest":"d","seconds":0.1}\n')
    given = ReplayOptions(job="/a job.toml", out="/o")
    record_failed_end(run, SIGNAL_INT(), (), replay=True, options=given)
    run.remove(keep_records=True)
    print_state(read_chain(run), [])
    out = capsys.readouterr().out
    assert f"`flowcheck replay FILE... --job '/a job.toml' --run {run.root} --out /o`" in out
    assert "keeps its last step" not in out
    with refused_as(REPLAY_SAVED_NOTHING, folder="/o"):
        newest_step(run, settle=False)


def test_the_job_file_is_named_in_the_command_for_a_namespace() -> None:
    sources = job_from(
        {"source": [{"interface": "none0"}], "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    ).source
    with pytest.raises(ConfigError) as why:
        check_capture_ports(sources, Path("a live.toml"))
    finding = why.value.finding
    assert "`ip netns exec NAME flowcheck up 'a live.toml'`" in finding.remedy
    assert "`" not in str(finding)
    assert refusal_code(finding.arguments["right"]) == NO_INTERFACE.code


def refusal_code(finding: object) -> str:
    code = getattr(finding, "code", None)
    assert isinstance(code, str)
    return code


def test_an_audit_is_offered_of_the_runs_own_steps_only(tmp_path: Path) -> None:
    run, _ = create_run(CONFIG, tmp_path / "run")
    try:
        assert not _applied(run, 3)
        run.steps.write_text('{"step":5,"digest":"d","seconds":0.1}\n')
        assert _applied(run, 5) and not _applied(run, 6)
    finally:
        run.remove(keep_records=False)


def test_an_audit_of_a_running_chain_without_a_step_names_its_status(tmp_path: Path) -> None:
    run, _ = create_run(CONFIG, tmp_path / "run")
    try:
        with refused_as(NO_REPLICA_YET) as why:
            audit_command.run(run.root, tmp_path / "x.pt", as_json=False)
        assert "flowcheck status" in why.value.finding.remedy  # type: ignore[attr-defined]
        (run.pids / "supervisor").write_text("999999 0")
        with refused_as(NO_REPLICA):
            audit_command.run(run.root, tmp_path / "x.pt", as_json=False)
    finally:
        run.remove(keep_records=False)


@pytest.mark.parametrize(
    "url", [pytest.param("http://127.0.0.1:1", marks=pytest.mark.nightly), "ftp://x"]
)
def test_with_json_a_failed_download_is_one_object_on_stderr(url: str, tmp_path: Path) -> None:
    words = ("restore", "--from", url, "--format", "torch", "--out", tmp_path / "x.pt", "--json")
    code, out, err = flowcheck(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    told = json.loads(err)
    if url.startswith("ftp"):
        finding = told["finding"]["arguments"]
        assert (finding["key"], finding["right"]["code"]) == ("--from", NEEDS_OPTIONS.code)
        assert finding["right"]["arguments"]["error"]["code"] == OPTIONS_MISSING.code
        assert finding["right"]["arguments"]["error"]["arguments"]["names"] == ["host"]
        assert "argument" not in told["finding"]["sentence"]
        assert "[persist]" not in told["remedy"]


@pytest.mark.parametrize(
    ("ring", "staging", "key"),
    [
        (RingConfig(), StagingConfig(size_bytes=999_999_999_999), "staging.size_bytes"),
        (RingConfig(slots=1 << 26), StagingConfig(), "ring.slots"),
        (RingConfig(slot_bytes=1 << 16), StagingConfig(size_bytes=1 << 20), "ring.slot_bytes"),
    ],
)
def test_the_setting_that_takes_the_memory_is_named(
    ring: RingConfig, staging: StagingConfig, key: str
) -> None:
    import msgspec

    config: JobConfig = msgspec.structs.replace(CONFIG, ring=ring, staging=staging)
    table, name = key.split(".")
    assert _largest_setting(config) == (key, getattr(getattr(config, table), name))
    lowered = msgspec.structs.replace(CONFIG, staging=StagingConfig(size_bytes=1 << 20))
    assert shared_memory_need(config) > 2 * shared_memory_need(lowered)
    assert "953,674 MiB" in str(RINGS_TOO_LARGE(need_mib=953_674, free_mib=1))


def test_several_kinds_of_a_source_are_named() -> None:
    two = {"file": "x", "interface": "eth1"}
    wanted = like(SEVERAL_SOURCE_KINDS, key="source", kinds="interface and file")
    with refused_as(wanted, kind=ConfigError):
        job_from({"source": [two], "optimizer": {"name": "sgd", "learning_rate": 0.1}})


def test_huge_pages_are_advised_once() -> None:
    pages = PAGES_SMALL("mount -o remount,huge=advise /dev/shm")
    few = TOO_FEW_HUGE_PAGES(mount="/m", free_mib=1, need_mib=2, folder="/dev/shm", pages=pages)
    assert f"{few} {few.remedy}".count("scripts/hugepages") == 1


@pytest.mark.parametrize("verb", ["replay", "restore", "base", "ports", "serve", "watch"])
def test_help_states_the_exit_codes(verb: str) -> None:
    told = get_command(app).commands[verb].help  # type: ignore[attr-defined]
    assert "Exit code 0: " in told and "2: " in told


def test_scripts_write_no_escape_codes_to_a_file() -> None:
    done = subprocess.run(
        ["bash", "-c", ". scripts/lib/setup.sh; say hello", "scripts/demo"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert "==> hello" in done.stdout and "\033" not in done.stdout


def test_a_replay_prints_each_assumption_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lossy = {"step": 3, "parameters_sha256": "5" * 64}  # nobody has the gradient of such a step
    result: dict[str, Any] = {"assumed": [], "notes": [], "digests": [lossy], "lost": None}
    result |= {"taint": None, "why": None}
    result |= {"captured_frames": 1, "steps": 1, "complete_steps": 1, "digest": "d"}
    result |= {"interrupted": False, "checkpoint": None}
    monkeypatch.setattr(
        replay_command,
        "_replay",
        lambda *_: result | {"beside": [dict(result)], "tainted_models": ()},
    )
    capture = ROOT / "tests" / "data" / "two-ranks-ll.pcapng"
    request = replay_command.ReplayRequest(
        files=(capture,), source="file", jobs=2, run=tmp_path / "run"
    )
    assert replay_command.run(request) == 0
    out, err = capsys.readouterr()
    assert (out + err).count("assumed optimizer") == 1
    assert (out + err).count("assumed learning rate") == 1
    assert f"step    3  gradient not whole{' ' * 55}  parameters {'5' * 64}\n" in out
