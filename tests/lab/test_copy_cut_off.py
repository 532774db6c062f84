"""A copy whose link to the chain that it follows is cut: nothing answers any more, not even with a
reset. Two namespaces with one cable; judged by torch's own optimizer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.copied import Copy, Source
from support.refused_as import says
from support.stale import sweep

from flowcheck.findings.catalog.replica_copies import COPY_SILENT, COPY_SOURCE_GONE
from flowcheck.lab.cluster.network_namespaces import in_namespace
from flowcheck.stages.replica_copies.copy_records import read_copy

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
NEAR, FAR = "10.77.31.1", "10.77.31.2"
TOKEN = "a token of the copies of this test"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Cable:
    """Between two namespaces."""

    def __init__(self) -> None:
        self.near, self.far = f"fctest{os.getpid()}", f"fcthosts{os.getpid()}-0"

    def plugged(self, is_in: bool) -> None:
        """At the near end; the far end has a link still."""
        words = "set", "dev", "c0", "up" if is_in else "down"
        _ip("-n", self.near, "link", *words)


@pytest.fixture
def cable() -> Iterator[Cable]:
    sweep()
    made = Cable()
    with ExitStack() as undone:
        for name in (made.near, made.far):
            _ip("netns", "add", name)
            undone.callback(_ip, "netns", "del", name)
        ends = ("c0", "type", "veth", "peer", "name", "c0", "netns", made.far)
        _ip("-n", made.near, "link", "add", *ends)
        for name, address in ((made.near, NEAR), (made.far, FAR)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "c0")
            _ip("-n", name, "link", "set", "dev", "c0", "up")
        yield made


def test_a_copy_that_is_cut_off_says_so_in_time_and_catches_up(
    cable: Cable, tmp_path: Path, shm: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with ExitStack() as ends:
        with in_namespace(cable.near):
            own = {"host": NEAR, "token_file": str(token)}
            first = Source(tmp_path / "first", shm / "first", **own)
        ends.callback(first.close)
        with in_namespace(cable.far):  # its threads stay there
            urls, more = [first.url], {"token_file": str(token)}
            second = Copy(tmp_path / "copy", shm / "copy", urls, **more)
        ends.callback(second.close)
        second.reaches(0)
        first.step(2)
        second.reaches(2)
        cable.plugged(False)
        first.step(3)
        second.until(lambda: second.says(COPY_SOURCE_GONE), "that nothing answers")
        record = read_copy(second.run)
        assert record is not None and not record.answers and second.step == 2
        assert record.why_not is not None and says(record.why_not, COPY_SILENT)
        cable.plugged(True)
        second.reaches(5)
        assert first.trainer.is_at(second.replica) and second.lines() == [1, 2, 3, 4, 5]
        assert second.service._states == 1, "the changes were still there"
