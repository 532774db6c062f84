"""A stage that cannot go on leaves the supervisor the finding, with its remedy: before it is made,
and when a file fails it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.chain_processes import BROKE
from flowcheck.findings.catalog.refused_commands import FILE_ERROR
from flowcheck.findings.catalog.run_directories import SETTINGS_DAMAGED
from flowcheck.findings.named_run import set_named_run
from flowcheck.messages import Fault, Message
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import run_until_stopped
from flowcheck.stages.supervisor.stage_main import run_stage
from flowcheck.stages.zmq_sockets import StageSockets


@pytest.fixture
def run(tmp_path: Path, shm: Path) -> Iterator[RunDir]:
    yield RunDir.create(tmp_path / "run", shm)
    set_named_run(None)


def heard(links: StageSockets) -> Fault:
    (fault,) = links.inbox.drain(limit=9, wait_ms=5000)
    links.close()
    assert isinstance(fault, Fault)
    return fault


def test_a_stage_that_could_not_be_made_tells_the_supervisor_why(run: RunDir) -> None:
    run.config.write_text("{")
    links = StageSockets(run.sockets, StageSockets.EVENTS)
    with pytest.raises(ConfigError) as caught:
        run_stage("parse", run.root, 1, None)
    fault = heard(links)
    assert fault.stage == "parse-1" and fault.finding == caught.value.finding
    why = fault.finding.arguments["right"]
    assert why.code == SETTINGS_DAMAGED.code and fault.finding.remedy  # type: ignore[union-attr]


def test_a_stage_of_no_running_chain_raises_its_error_alone(run: RunDir) -> None:
    run.config.write_text("{")
    with pytest.raises(ConfigError):
        run_stage("parse", run.root, 1, None)
    assert not list(run.sockets.iterdir())


class Failing:
    """A stage that a file, or a fault of its own, ends."""

    name = "extract"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def start(self, links: StageSockets) -> None:
        raise self._error

    def work(self) -> int:
        return 0

    def on_message(self, message: Message) -> None:
        """None comes."""

    def drained(self) -> bool:
        return True

    def stop(self) -> None:
        """Nothing was opened."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotADirectoryError(20, "Not a directory", "/x/job.pcap"), FILE_ERROR.code),
        (ValueError("odd"), BROKE.code),
    ],
)
def test_a_file_that_ends_a_stage_is_told_with_what_to_do(
    error: Exception, code: str, run: RunDir
) -> None:
    links = StageSockets(run.sockets, StageSockets.EVENTS)
    with pytest.raises(type(error)):
        run_until_stopped(Failing(error), StageSockets(run.sockets, "extract"))
    finding = heard(links).finding
    assert finding.code == code and finding.remedy
