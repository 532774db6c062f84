"""Every system call that changes a file is a kill point: what is found behind it is what was there
or what was to come, whole, and whoever goes on from it comes to the same end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.file_kills import explore, lacks
from support.persisting import proved, replica_in, saver_for, take

from flowcheck.atomic_write import atomic_path, atomic_path_per_process, write_atomically
from flowcheck.config import OptimizerConfig, PersistConfig
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint_files.latest_pointer import (
    latest_checkpoint,
    why_latest_is_missing,
)
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.run_directory.bounded_log_files import (
    append_line,
    complete_lines,
    last_complete_line,
)
from flowcheck.vault.persist.checkpoint_listing import verify_checkpoint
from flowcheck.vault.persist.saver import Saver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ADAMW = OptimizerConfig(name="adamw", learning_rate=0.1)
FILLS = [5, pytest.param(1, marks=pytest.mark.nightly)]
"""Of so many calls that fill a file one is killed by day; all others, and by night each."""


@pytest.fixture
def folder() -> Iterator[Path]:
    if why := lacks():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as made:
        yield Path(made)


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_a_file_is_the_old_one_or_the_new_one(folder: Path) -> None:
    def make(place: Path) -> None:
        write_atomically(place / "file", b"old")

    def work(place: Path) -> None:
        write_atomically(place / "file", b"of the new one")

    def judge(place: Path, when: str) -> None:
        assert (place / "file").read_bytes() in (b"old", b"of the new one"), when
        work(place)
        assert names(place) == ["file"], "nothing of the killed one stays"

    explored = explore(folder, make, work, judge)
    assert explored.torn >= 1 and any(call.startswith("rename") for call in explored.calls)


@pytest.mark.parametrize("apart", [False, True])
def test_a_folder_is_there_whole_or_not_at_all(folder: Path, apart: bool) -> None:
    def work(place: Path) -> None:
        final = place / "made"
        with atomic_path_per_process(final, folder=True) if apart else atomic_path(final) as inner:
            inner.mkdir(exist_ok=True)
            for name in "ab":
                (inner / name).write_bytes(b"all of " + name.encode())

    def judge(place: Path, when: str) -> None:
        if (place / "made").exists():
            assert names(place / "made") == ["a", "b"], when
            assert (place / "made" / "b").read_bytes() == b"all of b", when
        else:
            work(place)
        if not apart:
            assert names(place) == ["made"]

    assert explore(folder, lambda place: None, work, judge).torn >= 2


@pytest.mark.parametrize("fills", FILLS)
def test_a_line_is_there_whole_or_not_at_all_and_the_next_one_is(folder: Path, fills: int) -> None:
    """A line that is torn ends in a brace, as a whole one does."""
    of, most = b'{"a":' * 6 + b"{}" + b"}" * 6, 1600
    lines = [b'{"n":%d,"of":%b,"more":"%b"}' % (n, of, b"x" * 32) for n in range(40)]
    assert all(line[: (len(line) + 1) // 2].endswith(b"}") for line in lines)

    def make(place: Path) -> None:
        for line in lines[:20]:
            append_line(place / "lines", line, most)

    def work(place: Path) -> None:
        for line in lines[20:]:
            append_line(place / "lines", line, most)

    def judge(place: Path, when: str) -> None:
        last = last_complete_line(place / "lines")
        assert last in lines[19:], when
        assert complete_lines(place / "lines")[-1] == last
        for line in lines[lines.index(last) + 1 :]:
            append_line(place / "lines", line, most)
        found = complete_lines(place / "lines")
        assert found == lines[-len(found) :], when

    assert explore(folder, make, work, judge, fills=fills).torn >= 20 // fills


@pytest.mark.parametrize("fills", FILLS)
def test_a_checkpoint_is_whole_or_not_there_and_latest_names_one_that_is(
    folder: Path, fills: int
) -> None:
    def make(place: Path) -> None:
        replica = replica_in(place / "state", elements=50)
        take(replica, 1)
        checkpoint_save.save(replica, place / "kept")
        take(replica, 1)
        replica.close()

    def work(place: Path) -> None:
        replica = Replica.open(place / "state", ADAMW)
        checkpoint_save.save(replica, place / "kept")
        replica.close()

    def judge(place: Path, when: str) -> None:
        found = latest_checkpoint(place / "kept")
        assert found is not None, (when, why_latest_is_missing(place / "kept"))
        assert proved(found) == int(found.name.removeprefix("step-")), when
        for one in (place / "kept").glob("step-*"):
            assert proved(one), when
        work(place)
        assert names(place / "kept") == ["latest", "step-1", "step-2"], when
        assert latest_checkpoint(place / "kept") == place / "kept" / "step-2"

    explored = explore(folder, make, work, judge, fills=fills)
    assert len(explored.calls) >= 2 and explored.torn >= (2 if fills == 1 else 1)


@pytest.mark.parametrize("fills", FILLS)
@pytest.mark.parametrize(
    "limit",
    [None, pytest.param(10**9, marks=pytest.mark.nightly)],
    ids=["in place", "staged"],
)
def test_a_save_is_known_by_its_list_and_by_latest_alike(
    folder: Path, limit: int | None, fills: int
) -> None:
    """A process that begins anew, and is asked for no step, finds what is durable."""

    def saver(place: Path) -> Saver:
        config = PersistConfig(
            target=str(place / "kept"), every_steps=1, keep_last=1, rate_limit_bytes_s=limit
        )
        return saver_for(config, place / "staging", place / "state")

    def make(place: Path) -> None:
        replica = replica_in(place / "state", elements=50)
        for _ in range(2):
            take(replica, 1)
            saver(place).save(replica.step)
        take(replica, 1)
        replica.close()

    def work(place: Path) -> None:
        saver(place).save(3)

    def judge(place: Path, when: str) -> None:
        kept = place / "kept"
        found = latest_checkpoint(kept)
        assert found is not None, (when, why_latest_is_missing(kept))
        assert proved(found) in (2, 3), when
        told = json.loads((kept / "checkpoints.json").read_bytes())
        for entry in told["entries"]:
            assert verify_checkpoint(kept / entry["name"]).step == entry["step"], when
        for one in kept.glob("step-*"):
            known = [entry["name"] for entry in told["entries"]]
            assert one.name in (*known, *told["writing"], *told["leaving"]), when
        durable = saver(place).durable_after_cleanup()
        assert durable is not None, when
        assert (kept / "latest").read_text() == f"{durable.name}\n", when
        if durable.step == 2:
            work(place)
        assert names(kept) == ["checkpoints.json", "latest", "step-3"], when
        told = json.loads((kept / "checkpoints.json").read_bytes())
        assert [entry["step"] for entry in told["entries"]] == [3], when
        assert not told["writing"] and not told["leaving"], when
        saver(place).save(3)  # what was staged before a kill goes with the next save
        assert not (place / "staging").exists() or not names(place / "staging"), when

    explored = explore(folder, make, work, judge, fills=fills)
    assert len(explored.calls) >= 5 and explored.torn >= (5 if fills == 1 else 1)
