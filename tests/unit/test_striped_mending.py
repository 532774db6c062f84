"""Blocks that a store lost, or damaged, are made again byte for byte, and nothing is worse for it
at any time on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.persisting import replica_in, saver_for, take
from support.refused_as import refused_as
from support.striped import (
    SHARD,
    config,
    flip,
    read_back,
    regions,
    saved,
    sums,
    use_small_blocks,
    whole_sums,
)

from flowcheck.config import PersistConfig
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.erasure import block_store
from flowcheck.vault.erasure.block_store import FolderStore
from flowcheck.vault.erasure.scrub import Scrubber, ScrubResult
from flowcheck.vault.erasure.target_choice import open_striped_target
from flowcheck.vault.persist import local_folder
from flowcheck.vault.persist.checkpoint_ledger import LEDGER, decode
from flowcheck.vault.persist.rate_limit import Stopped, TransferPace


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.fixture
def replica(shm: Path) -> Iterator[Replica]:
    made = replica_in(shm / "state", 20_000)
    take(made)
    yield made
    made.close()


def scrubber_of(own: PersistConfig, folder: Path) -> Scrubber:
    staging, journals = folder / "staging", folder / "staging/again"
    return Scrubber(lambda: open_striped_target(own, staging, journals), "run")


def look(own: PersistConfig, folder: Path, *, every_block: bool = True) -> ScrubResult:
    return scrubber_of(own, folder).look(TransferPace(), every_block=every_block)


def contents(stores: list[Path]) -> list[dict[str, str]]:
    """Of the steps at each store."""
    return [sums(store / "step-1") for store in stores]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARM: dict[str, Callable[[Path, Path], object]] = {
    "no file": lambda one, _: (one / "step-1" / SHARD).unlink(),
    "no manifest": lambda one, _: (one / "step-1/manifest.json").unlink(),
    "other manifest": lambda one, _: flip(one / "step-1/manifest.json", 9),
    "no step": lambda one, _: shutil.rmtree(one / "step-1"),
    "empty": lambda one, _: (one / "step-1" / SHARD).write_bytes(b""),
    "cut": lambda one, _: cut(one / "step-1" / SHARD),
    "longer": lambda one, _: (one / "step-1" / SHARD).write_bytes(
        (one / "step-1" / SHARD).read_bytes() + b"more"
    ),
    "that of another store": lambda one, other: shutil.copyfile(
        other / "step-1" / SHARD, one / "step-1" / SHARD
    ),
}


@pytest.mark.parametrize("code", [(2, 1), (2, 2), (1, 2)], ids=str)
def test_what_m_stores_lack_is_again_what_they_had(
    replica: Replica, shm: Path, tmp_path: Path, code: tuple[int, int]
) -> None:
    stores = saved(tmp_path, shm / "state", *code)
    own, before = config(tmp_path, *code), contents(stores)
    assert look(own, tmp_path) == ScrubResult(saves=1)
    parity = code[1]
    for number, harm in enumerate(HARM.values()):
        hurt = [(number + one) % len(stores) for one in range(parity)]
        for one in hurt:
            harm(stores[one], stores[hurt[0] - 1])
        result = look(own, tmp_path)
        # Where three have the same blocks, any of them may keep them.
        assert sorted(map(str, contents(stores))) == sorted(map(str, before))
        (again,) = result.again
        assert again.is_any_of(told.MADE_AGAIN)
        assert len(again.arguments["why"]) == parity  # type: ignore[arg-type]
        assert not result.lacking and result.newest is None
        assert look(own, tmp_path) == ScrubResult(saves=1)
    assert not list((tmp_path / "staging").rglob(SHARD))


def test_a_flipped_bit_anywhere_is_found_and_made_right(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    own, before = config(tmp_path, 2, 1), contents(stores)
    for number, (region, at) in enumerate(regions(stores[0]).items()):
        path = stores[number % 3] / "step-1" / SHARD
        flip(path, at)
        quick = look(own, tmp_path, every_block=False)
        assert bool(quick.again) == (region not in ("first block", "later block")), region
        look(own, tmp_path)
        assert contents(stores) == before, region


def test_each_store_with_some_blocks_damaged_is_mended_from_the_others(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    """No store is whole, and no stripe has lost more than one block."""
    stores = saved(tmp_path, shm / "state", 2, 1)
    own, before = config(tmp_path, 2, 1), contents(stores)
    for number, store in enumerate(stores):
        flip(store / "step-1" / SHARD, regions(store)["first block"] + (4 + 5 * number) * 4096)
    result = look(own, tmp_path)
    assert contents(stores) == before and len(result.again[0].arguments["why"]) == 3  # type: ignore[arg-type]


def test_of_more_than_m_nothing_is_touched_and_it_is_told(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    own = config(tmp_path, 2, 1)
    for store in stores[:2]:
        flip(store / "step-1" / SHARD, regions(store)["first block"])
    hurt = contents(stores)
    result = look(own, tmp_path)
    assert contents(stores) == hurt and not result.again
    assert result.newest is not None and result.newest.is_any_of(told.NOT_MENDED)
    assert (result.newest.arguments["stores"], result.newest.arguments["of"]) == (2, 3)
    for store in stores[:2]:
        shutil.rmtree(store / "step-1")
    result = look(own, tmp_path)
    assert result.newest is not None and result.newest.is_any_of(told.TOO_FEW_SHARDS)


class Killed(BaseException):
    """As SIGKILL: nobody handles it."""


class Dying(TransferPace):
    """Ends the process at one of its calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._left = calls

    def _call(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def wait_to_send(self, count: int) -> None:
        self._call()

    def note_moved(self, count: int) -> None:
        self._call()

    def heartbeat(self) -> None:
        self._call()


def test_killed_anywhere_all_that_was_readable_is_and_the_next_look_ends_it(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    whole = whole_sums(shm, tmp_path)
    stores = saved(shm / "stores", shm / "state", 2, 1)
    own, before = config(shm / "stores", 2, 1), contents(stores)
    ended = 0
    for calls in range(0, 400, 11):
        store = stores[calls % 3]
        flip(store / "step-1" / SHARD, regions(store)["first block"])
        other = stores[(calls + 1) % 3]
        flip(other / "step-1" / SHARD, regions(other)["later block"])
        try:
            scrubber_of(own, shm / "stores").look(Dying(calls), every_block=True)
            ended = calls
        except Killed:
            pass
        assert read_back(stores[(calls + 2) % 3])[:2] == (1, whole)
        look(own, shm / "stores")
        assert contents(stores) == before
        if ended:
            break
    assert ended > 30
    assert not [path for store in stores for path in store.rglob("*.tmp")]


@pytest.mark.parametrize("placed", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_killed_while_a_file_is_placed_no_block_is_lost(
    replica: Replica,
    shm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    placed: int,
    share: float,
) -> None:
    """Two stores have lost a block each, of different stripes: each needs the other's file."""
    whole = whole_sums(shm, tmp_path)
    stores = saved(tmp_path, shm / "state", 2, 1)
    before, left = contents(stores), [placed]

    def copied(source: Path, to: Path, pace: TransferPace) -> None:
        data, left[0] = source.read_bytes(), left[0] - 1
        to.write_bytes(data if left[0] else data[: int(share * len(data))])
        if not left[0]:
            raise Killed

    for module in (block_store, local_folder):
        monkeypatch.setattr(module, "copy_file_durably", copied)
    for store, region in zip(stores, ("first block", "later block"), strict=False):
        flip(store / "step-1" / SHARD, regions(store)[region])
    with pytest.raises(Killed):
        look(config(tmp_path, 2, 1), tmp_path)
    for store in stores:
        assert read_back(store)[:2] == (1, whole)
    monkeypatch.undo()
    look(config(tmp_path, 2, 1), tmp_path)
    assert contents(stores) == before


class Counting(FolderStore):
    """Counts the blocks that are read."""

    read = 0
    stop_at: int | None = None
    pace = TransferPace()

    def part(self, path: str, begin: int, size: int) -> bytes:
        if size == 4096:
            Counting.read += 1
            if Counting.read == Counting.stop_at:
                Counting.pace.stop()
        return super().part(path, begin, size)


def test_a_look_that_a_save_stops_goes_on_behind_what_it_has_read(
    replica: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    monkeypatch.setattr(block_store, "FolderStore", Counting)
    monkeypatch.setattr(Counting, "read", 0)
    own, before = config(tmp_path, 2, 1), contents(stores)
    scrubber = scrubber_of(own, tmp_path)
    scrubber.look(TransferPace(), every_block=True)
    all_blocks = Counting.read
    flip(stores[2] / "step-1" / SHARD, regions(stores[2])["later block"])
    Counting.read, looks = 0, 0
    while True:
        looks += 1
        Counting.pace, Counting.stop_at = TransferPace(), Counting.read + 20
        try:
            scrubber.look(Counting.pace, every_block=True)
            break
        except Stopped:
            assert looks < 30
    assert looks > 4 and contents(stores) == before
    # The blocks of one store are made from two others, and those of the mended one read again.
    assert Counting.read < 3 * all_blocks


def test_the_newest_that_all_have_leaves_once_a_newer_one_is_mended(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    own = config(tmp_path, 2, 1, keep_last=1)
    stores = [Path(one) for one in own.targets]
    saver_for(own, tmp_path / "staging", shm / "state").save(1)
    stores[0].rename(tmp_path / "away")
    take(replica)
    saver_for(own, tmp_path / "staging", shm / "state").save(2)
    result = look(own, tmp_path)
    assert result.newest is not None and result.newest.is_any_of(told.NOT_MENDED)
    assert not stores[0].exists()  # what is not mounted gets no folder
    (tmp_path / "away").rename(stores[0])
    assert len(look(own, tmp_path, every_block=False).again) == 1
    text = (stores[1] / LEDGER).read_bytes().partition(b"\n")[2]
    assert [one.lacking for one in decode(text, "").entries] == [0, 0]
    shutil.rmtree(stores[2])
    assert read_back(stores[0])[0] == 2
    stores[2].mkdir()
    (stores[2] / "stripes.new").touch()
    assert len(look(own, tmp_path, every_block=False).again) == 2
    take(replica)
    saver_for(own, tmp_path / "staging", shm / "state").save(3)
    assert {one.name for store in stores for one in store.glob("step-*")} == {"step-3"}


def test_what_is_not_listed_any_more_and_what_strangers_wrote_stay_as_they_are(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    own = config(tmp_path, 2, 1)
    shutil.rmtree(stores[0] / "step-1")
    other = Scrubber(lambda: open_striped_target(own, tmp_path / "staging"), "another run")
    assert other.look(TransferPace(), every_block=True) == ScrubResult()
    assert not (stores[0] / "step-1").exists()
    (stores[0] / "step-1").mkdir()
    (stores[0] / "step-1/mine.txt").write_text("keep")
    result = look(own, tmp_path)
    assert result.newest is not None
    (why,) = result.newest.arguments["why"]  # type: ignore[misc]
    assert why.is_any_of(told.STRANGERS_FILE)  # type: ignore[union-attr]
    assert sums(stores[0] / "step-1").keys() == {"mine.txt"}


def test_an_object_store_gets_again_what_it_lost_whatever_its_journal_says(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    import fsspec

    far = f"memory://{tmp_path.name}/job"
    own = PersistConfig(targets=(str(tmp_path / "a"), far, str(tmp_path / "b")), every_steps=1)
    saver_for(own, tmp_path / "staging", shm / "state").save(1)
    memory = fsspec.filesystem("memory")
    path = f"/{tmp_path.name}/job/step-1/{SHARD}"
    before = memory.cat_file(path)
    for damaged in (before[:100], before[: len(before) // 2], b"", None):
        memory.rm_file(path)
        if damaged is not None:
            memory.pipe_file(path, damaged)
        assert len(look(own, tmp_path, every_block=False).again) == 1
        assert memory.cat_file(path) == before


def test_of_a_set_whose_disks_are_not_mounted_nothing_is_made_in_their_places(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    for store in stores[:2]:
        shutil.rmtree(store)
    own = config(tmp_path, 2, 1)
    with refused_as(told.TOO_FEW_ANSWER, answered=1, needed=2):
        look(own, tmp_path)
    with refused_as(told.TOO_FEW_ANSWER, answered=1, needed=2):
        saver_for(own, tmp_path / "staging", shm / "state").save(1)
    assert [store.exists() for store in stores] == [False, False, True]
