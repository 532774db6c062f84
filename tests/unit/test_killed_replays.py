"""A killed replay is told to be repeated with what it was started with, wherever it is told."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.refused_as import refused_as
from test_cli import flowcheck
from typer.main import get_command

from flowcheck.cli.main import app
from flowcheck.config import job_from
from flowcheck.findings.catalog.base_checkpoints import REPLAY_WAS_KILLED
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.leftover_memory import LeftoverMemory
from flowcheck.ops.lifecycle.replay_command import ReplayRequest, _options
from flowcheck.ops.lifecycle.shutdown_cleanup import rescue_killed_chain
from flowcheck.ops.trainer_checkpoint import base_command
from flowcheck.ops.watch.state.replay_options_record import REPLAY_PREFIX, write_replay_options
from flowcheck.stages.run_directory.run_dir import RunDir

WORDS = ["/a c.pcap", "/b.pcap", "--job", "/a job.toml", "--speed", "2.0", "--jobs", "2"]
STARTED = ReplayRequest(
    files=(Path("/a c.pcap"), Path("/b.pcap")),
    job=Path("/a job.toml"),
    speed=2.0,
    jobs=2,
    digests=True,
    output=Path("/o"),
)
CONFIG = job_from({"source": [{"file": "x"}], "optimizer": {"name": "sgd", "learning_rate": 0.1}})


@pytest.fixture(params=["chosen", "temporary"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RunDir, str]]:
    """A killed replay, and the run directory that a command to repeat it names."""
    root = tmp_path / "a run"
    if request.param == "temporary":
        root = Path(tempfile.mkdtemp(prefix=REPLAY_PREFIX))
    run, _ = create_run(CONFIG, root)
    write_replay_options(run, _options(STARTED))
    (run.pids / "supervisor").write_text("999999 0")
    yield run, str(root) if request.param == "chosen" else "DIR"
    run.remove(keep_records=False)
    if request.param == "temporary":
        shutil.rmtree(root)


def repeats(text: str, run: str) -> bool:
    """Whether a text has the command with all that the replay was started with."""
    for span in text.split("`")[1::2]:
        if span.startswith("flowcheck replay "):
            verb, *words = shlex.split(span)[1:]
            read = get_command(app).commands[verb].make_context(verb, list(words)).params  # type: ignore[attr-defined]
            assert [str(file) for file in read["files"]] == WORDS[:2]
            assert (str(read["job"]), read["speed"], read["jobs"]) == ("/a job.toml", 2.0, 2)
            assert read["digests"] and str(read["out"]) == "/o" and read["optimizer"] is None
            assert str(read["keep"]) == run
            return True
    return False


@pytest.mark.parametrize("step", ["", '{"step":5,"digest":"d","seconds":0.1}\n'])
def test_status_of_a_killed_replay_repeats_it(killed: tuple[RunDir, str], step: str) -> None:
    run, named = killed
    run.steps.write_text(step)
    code, out, _ = flowcheck("status", "--json", "--run", run.root)
    reason = json.loads(out)["health"]["reason"]
    assert code == 1 and repeats(reason["remedy"], named), reason
    assert "flowcheck up" not in reason["remedy"] and "up JOB.toml" not in reason["sentence"]
    _, people, _ = flowcheck("status", "--run", run.root)
    assert repeats(people, named) == bool(step)
    assert f"flowcheck down --run {shlex.quote(str(run.root))}" in people


def test_base_and_leftovers_of_a_killed_replay_repeat_it(
    killed: tuple[RunDir, str], tmp_path: Path
) -> None:
    run, named = killed
    with refused_as(REPLAY_WAS_KILLED) as why:
        base_command.run(run.root, tmp_path / "x.pt", as_json=False)
    assert repeats(why.value.finding.remedy, named)  # type: ignore[attr-defined]
    left = LeftoverMemory(run.memory, run.root, size_bytes=1, has_replica=True)
    assert repeats(left.finding.remedy, named) == left.must_be_kept == (named != "DIR")


def test_the_record_of_its_end_repeats_it(killed: tuple[RunDir, str]) -> None:
    run, named = killed
    assert rescue_killed_chain(run, "flowcheck down") is not None
    record = msgspec.json.decode(run.ended.read_bytes())
    assert record["replay_options"]["job"] == "/a job.toml"
    run.remove(keep_records=True)
    _, people, _ = flowcheck("status", "--run", run.root)
    assert repeats(people, named)
