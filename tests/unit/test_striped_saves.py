"""Steps that are saved on several stores: any k of them give the step back, bit for bit."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.persisting import Steps, replica_in, saver_for, take
from support.refused_as import like, refused_as, says
from support.striped import (
    SHARD,
    config,
    flip,
    read_back,
    regions,
    restored,
    saved,
    use_small_blocks,
    whole_sums,
)

import flowcheck
from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.catalog.checkpoint_downloads import NO_STEP_THERE
from flowcheck.findings.catalog.checkpoint_stores import SAVED_BESIDE
from flowcheck.findings.catalog.refused_restores import OTHER_STEP
from flowcheck.ops.restore import verify_command
from flowcheck.ops.restore.restore_command import restore
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.download.striped_source import StripedSource, open_striped
from flowcheck.vault.erasure import striped_target
from flowcheck.vault.erasure.block_store import FolderStore
from flowcheck.vault.erasure.small_files import StoreSet
from flowcheck.vault.erasure.store_group import StoreGroup
from flowcheck.vault.persist.saver import Saver


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.fixture
def replica(shm: Path) -> Iterator[Replica]:
    made = replica_in(shm / "state", 20_000)
    take(made)
    yield made
    made.close()


@pytest.fixture
def whole(replica: Replica, shm: Path, tmp_path: Path) -> dict[str, str]:
    """Of the same step as one store has it."""
    return whole_sums(shm, tmp_path)


def test_every_loss_of_up_to_m_stores_is_read_from_any_store_that_is_left(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    for data, parity in ((4, 2), (1, 2)):
        own = tmp_path / f"{data}-{parity}"
        stores = saved(own, shm / "state", data, parity)
        assert not list((own / "staging").rglob("step-*"))
        number = 0
        for lost in range(parity + 1):
            for gone in itertools.combinations(stores, lost):
                for store in gone:
                    store.rename(store.with_suffix(".away"))
                left = [store for store in stores if store.exists()]
                number += 1
                from_one = left[number % len(left)]
                enough = len(left) >= max(data, len(stores) // 2 + 1)
                step = "latest" if enough else 1
                assert read_back(from_one, step) == (1, whole, int(lost > 0))
                if not enough:  # an older one may be the newest that these know
                    with refused_as(told.TOO_FEW_ANSWER):
                        read_back(from_one)
                for store in gone:
                    store.with_suffix(".away").rename(store)
        for store in stores[: parity + 1]:
            shutil.rmtree(store / "step-1")
        with refused_as(told.TOO_FEW_SHARDS, told.TOO_FEW_ANSWER):
            read_back(stores[-1])


def test_a_flipped_bit_anywhere_at_m_stores_is_never_read(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    assert set(regions(stores[0])) and len(stores) == 3
    for number, (region, at) in enumerate(regions(stores[0]).items()):
        damaged = stores[number % 3]
        path = damaged / "step-1" / SHARD
        kept = path.read_bytes()
        flip(path, at)
        assert read_back(stores[1])[:2] == (1, whole), region
        path.write_bytes(kept)
    for store in stores[:2]:
        flip(store / "step-1" / SHARD, regions(store)["first block"])
    for store in stores[:2]:
        named = like(told.BLOCK_DAMAGED, file=re.compile(re.escape(str(store))), stripe=0)
        with refused_as(told.TOO_FEW_BLOCKS, stripe=0, found=1, needed=2, why=named):
            restored(stores[2], tmp_path / "none")


def test_torn_swapped_and_foreign_files_are_told_apart(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 2)
    first, second, third, _ = (store / "step-1" / SHARD for store in stores)
    kept = first.read_bytes()
    for size in (0, 5, 60, len(kept) // 2, len(kept) - 1):
        first.write_bytes(kept[:size])
        assert read_back(stores[2])[:2] == (1, whole)
    first.write_bytes(kept)
    stores[0].rename(tmp_path / "other")
    stores[1].rename(stores[0])
    (tmp_path / "other").rename(stores[1])
    assert restored(stores[0], tmp_path / "swapped") == whole
    second.write_bytes(third.read_bytes())  # twice the same one counts once
    shutil.rmtree(stores[0])
    source = open_striped(str(stores[2]), {}, 10.0)
    assert source is not None
    source.find(1)
    (remark,) = source.remarks()
    assert told.SHARD_TWICE.code in {one.code for one in remark.arguments["why"]}
    assert read_back(stores[2])[:2] == (1, whole)
    another = replica_in(shm / "another", 20_000)
    take(another, 2)
    another.close()
    foreign = tmp_path / "foreign"
    saved(foreign, shm / "another", 2, 2, step=2)
    shutil.copyfile(foreign / "store2/step-2" / SHARD, third)
    shutil.rmtree(stores[1] / "step-1")
    with refused_as(told.TOO_FEW_SHARDS, found=1, needed=2):
        restored(stores[2], tmp_path / "none")


def test_damaged_heads_are_told_and_a_store_without_its_list_is_named(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 2)
    for store, region in ((stores[0], "magic"), (stores[1], "digests")):
        flip(store / "step-1" / SHARD, regions(store)[region])
    source = open_striped(str(stores[3]), {}, 10.0)
    assert source is not None
    offer = source.find(1)
    for file in offer.listing.files:
        data = source.read(offer, file, 0, file.size_bytes)
        assert hashlib.sha256(data).hexdigest() == whole[file.name]
    (remark,) = source.remarks()
    assert says(remark, told.HEADS_DAMAGED, stores=2, of=4, left=0)
    (stores[0] / "stripes.json").unlink()
    with refused_as(told.LIST_GONE):
        download_step(str(stores[0]), 1, tmp_path / "none")


class Killed(BaseException):
    """As SIGKILL: nobody handles it, and nothing is written behind it."""


def test_killed_before_any_write_the_step_is_whole_or_not_there(
    replica: Replica, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowcheck.vault.persist.local_folder import LocalFolder

    folder = shm / "stores"
    left = [10**9]

    def dying(name: str) -> None:
        own = getattr(LocalFolder, name)

        def call(self: LocalFolder, *arguments: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return own(self, *arguments)

        monkeypatch.setattr(LocalFolder, name, call)

    for name in ("write", "send", "remove"):
        dying(name)
    own = config(folder, 2, 1, keep_last=1)
    stores = [Path(one) for one in own.targets]
    saver_for(own, folder / "staging", shm / "state").save(1)
    take(replica)
    ended = seen_old = seen_new = 0
    for writes in range(60):
        left[0] = writes
        try:
            saver_for(own, folder / "staging", shm / "state").save(2)
            ended = writes
        except Killed:
            pass
        left[0] = 10**9
        step, files, _ = read_back(stores[writes % 3])
        manifest = json.loads((stores[writes % 3] / f"step-{step}/manifest.json").read_bytes())
        del files["manifest.json"]
        assert files == {name: one["sha256"] for name, one in manifest["files"].items()}
        seen_old, seen_new = seen_old + (step == 1), seen_new + (step == 2)
        if ended:
            break
        if step == 2:  # again from before, for the writes behind
            shutil.rmtree(folder / "staging", ignore_errors=True)
            for store in stores:
                shutil.rmtree(store)
            again = replica_in(shm / f"state{writes}", 20_000)
            take(again)
            saver_for(own, folder / "staging", shm / f"state{writes}").save(1)
            again.close()
    assert ended and seen_old > 5 and seen_new >= 1
    names = {path.name for store in stores for path in store.iterdir()}
    assert names == {"checkpoints.json", "latest", "stripes.json", "step-2"}


def test_a_store_that_is_down_is_told_and_too_few_are_refused(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    own = config(tmp_path, 2, 2)
    stores = [Path(one) for one in own.targets]
    stores[0].write_text("a disk that is no folder")
    saver = saver_for(own, tmp_path / "staging", shm / "state")
    saver.save(1)
    assert saver.short is not None and saver.short.code == told.SAVED_WITHOUT.code
    assert (saver.short.arguments["took"], saver.short.arguments["left"]) == (3, 1)
    assert restored(stores[3], tmp_path / "got") == whole
    stores[2].rename(tmp_path / "away")
    stores[2].write_text("this too")
    with refused_as(told.TOO_FEW_ANSWER, answered=2, needed=3):
        saver_for(own, tmp_path / "staging", shm / "state").save(1)


def test_the_newest_that_all_stores_have_outlives_those_that_some_have(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    own = config(tmp_path, 2, 1, keep_last=1)
    stores = [Path(one) for one in own.targets]
    saver_for(own, tmp_path / "staging", shm / "state").save(1)
    stores[0].rename(tmp_path / "away")
    for step in (2, 3, 4):
        take(replica)
        saver_for(own, tmp_path / "staging", shm / "state").save(step)
    assert {one.name for one in stores[1].glob("step-*")} == {"step-1", "step-4"}
    assert not stores[0].exists()  # what is not mounted gets no folder
    (tmp_path / "away").rename(stores[0])
    shutil.rmtree(stores[1])
    assert restored(stores[0], tmp_path / "got", step=1) == whole
    take(replica)
    stores[1].mkdir()
    saver = saver_for(own, tmp_path / "staging", shm / "state")
    saver.save(5)
    assert saver.short is not None and not list(stores[1].iterdir())
    (stores[1] / "stripes.new").touch()
    take(replica)
    saver = saver_for(own, tmp_path / "staging", shm / "state")
    saver.save(6)
    assert saver.short is None
    assert {one.name for one in stores[1].glob("step-*")} == {"step-6"}


class Hanging(FolderStore):
    """A mount whose server is dead: no call comes back."""

    held = threading.Event()

    def part(self, path: str, begin: int, size: int) -> bytes:
        self.held.wait(30)
        raise OSError("dead")

    def size(self, path: str) -> int:
        return len(self.part(path, 0, 0))

    def withdraw(self, name: str) -> None:
        self.part(name, 0, 0)


def test_a_store_that_hangs_stops_neither_saves_nor_restores(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    own = config(tmp_path, 2, 1)
    stores = [FolderStore(Path(one)) for one in own.targets]
    saved(tmp_path, shm / "state", 2, 1)
    dead = Hanging(stores[0].root)
    dead.target = HangingTarget(dead)
    take(replica)
    staging = tmp_path / "staging"
    place = striped_target.StripedTarget([dead, *stores[1:]], 2, 1, staging, 4096, 0.3)
    began_s = time.monotonic()
    saver = Saver(own, place, staging, Steps(shm / "state", "run", own))
    assert saver.save(2).step == 2
    assert saver.short is not None
    group = StoreGroup([dead, *stores[1:]], 0.3)
    source = StripedSource(group, StoreSet(data=2, parity=1, stores=own.targets))
    offer = source.find(1)
    for file in offer.listing.files:
        data = source.read(offer, file, 0, file.size_bytes)
        assert hashlib.sha256(data).hexdigest() == whole[file.name]
    assert time.monotonic() - began_s < 15
    dead.held.set()


class HangingTarget:
    """Each method of it hangs."""

    def __init__(self, store: Hanging) -> None:
        self.url, self._store = store.url, store

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *_: self._store.part(name, 0, 0)


def test_stores_named_twice_and_another_set_are_refused(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    (tmp_path / "link").symlink_to(stores[0])
    for targets, entry in (
        ((*map(str, stores[:2]), str(tmp_path / "link")), told.OTHER_SET),
        ((*map(str, stores), str(tmp_path / "more")), told.OTHER_SET),
    ):
        other = PersistConfig(targets=targets, every_steps=1)
        with refused_as(entry):
            saver_for(other, tmp_path / "staging", shm / "state").save(1)
    fresh = tmp_path / "fresh"
    (fresh / "a").mkdir(parents=True)
    (fresh / "b").symlink_to(fresh / "a")
    twice = PersistConfig(targets=(str(fresh / "a"), str(fresh / "b")), every_steps=1)
    with refused_as(told.SAME_FOLDER):
        saver_for(twice, tmp_path / "staging", shm / "state").save(1)


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("other", ["another", "run"])
def test_another_that_saves_to_the_same_place_is_told(
    replica: Replica, shm: Path, tmp_path: Path, other: str, several: bool
) -> None:
    """By a run of another name, and by one of the same name, as on another machine."""
    one = PersistConfig(target=str(tmp_path / "kept"), every_steps=1)
    own = config(tmp_path, 2, 1) if several else one
    last = None
    for step in (1, 2):
        mine = saver_for(own, tmp_path / "staging", shm / "state")
        mine.after = last
        last = mine.save(step)
        assert mine.beside is None
        take(replica)
    saver_for(own, tmp_path / "other", shm / "state", other).save(3)
    take(replica)
    mine = saver_for(own, tmp_path / "staging", shm / "state")
    mine.after = last
    mine.save(4)
    assert mine.beside is not None
    assert says(mine.beside, SAVED_BESIDE, name="step-3", run=other)


def test_settings_that_cannot_be_are_refused() -> None:
    three = ("/a", "/b", "/c")
    made = PersistConfig(targets=three, every_steps=1)
    assert (made.data_blocks, made.parity_blocks, made.target, made.is_local) == (2, 1, "/a", False)
    for wrong, entry in (
        ({"targets": three, "data_blocks": 3, "parity_blocks": 1}, told.STORES_COUNT),
        ({"targets": ("/a", "/b", "/a/")}, told.STORES_TWICE),
        ({"targets": three, "target": "/d"}, told.TARGET_OR_TARGETS),
        ({"target": "/a", "parity_blocks": 1}, told.CODE_WITHOUT_TARGETS),
        ({"targets": tuple(f"/{n}" for n in range(40))}, told.BLOCKS_TOO_MANY),
    ):
        with refused_as(entry, kind=ConfigError):
            PersistConfig(every_steps=1, **wrong)  # type: ignore[arg-type]


class FlakyTarget:
    """A dictionary that is down, or ends the writer, when it is told to."""

    def __init__(self) -> None:
        self.url, self.files = str(id(self)), dict[str, bytes]()
        self.is_up = True
        self.lives = [10**9]

    def read(self, path: str, most_bytes: int = 0) -> bytes | None:
        if not self.is_up:
            raise OSError("down")
        return self.files.get(path)

    def write(self, path: str, data: bytes) -> None:
        if not self.is_up:
            raise OSError("down")
        self.lives[0] -= 1
        if self.lives[0] < 0:
            raise Killed
        self.files[path] = data

    def holds(self, name: str) -> bool:
        return name in self.files


class FlakyStore:
    """The store of such a dictionary."""

    def __init__(self) -> None:
        self.target = FlakyTarget()
        self.url, self.is_local = self.target.url, False


@pytest.mark.parametrize("code", [(1, 1), (2, 1), (2, 2), (1, 3), (4, 2)])
def test_nothing_that_was_noted_is_forgotten_whatever_is_down(
    code: tuple[int, int], tmp_path: Path
) -> None:
    dice = random.Random(sum(code))
    lives = [10**9]
    stores = [FlakyStore() for _ in range(sum(code))]
    for store in stores:
        store.target.lives = lives
    place = striped_target.StripedTarget(stores, *code, tmp_path)
    place.write("latest", b"0")
    known, reads, refused = 0, 0, 0
    for value in range(1, 150):
        for store in stores:
            store.target.is_up = dice.random() < 0.8
        lives[0] = dice.choice([10**9, 0, 1, 2, 3])
        try:
            if dice.random() < 0.5:
                place = striped_target.StripedTarget(stores, *code, tmp_path)
            if dice.random() < 0.5:
                place.write("latest", str(value).encode())
                known = value
            else:
                seen = int(place.read("latest") or b"-1")
                assert seen >= known, "an older one came back"
                known, reads = seen, reads + 1
        except Killed:
            place = striped_target.StripedTarget(stores, *code, tmp_path)
        except StateError as error:
            assert error.finding.is_any_of(told.TOO_FEW_ANSWER)
            refused += 1
    assert reads > 10 and refused > 0


def test_a_store_of_fsspec_is_one_of_several(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    far = f"memory://{tmp_path.name}/job"
    near = [tmp_path / "a", tmp_path / "b"]
    own = PersistConfig(targets=(str(near[0]), far, str(near[1])), every_steps=1)
    saver_for(own, tmp_path / "staging", shm / "state").save(1)
    shutil.rmtree(near[0])
    assert read_back(far)[:2] == (1, whole)
    take(replica)
    near[0].mkdir()
    (near[0] / "stripes.new").touch()
    saver_for(own, tmp_path / "staging", shm / "state").save(2)
    shutil.rmtree(near[1])
    assert read_back(far)[0] == 2


def test_one_store_is_loaded_by_its_path_and_verified_by_none(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 1)
    loaded = flowcheck.load(stores[1])
    one = flowcheck.load(tmp_path / "one/step-1")
    assert loaded["step"] == one["step"] == 1
    assert all(torch.equal(loaded["model"][name], own) for name, own in one["model"].items())
    named = flowcheck.load(stores[2] / "step-1")
    assert all(torch.equal(named["model"][name], own) for name, own in one["model"].items())
    for path in (stores[0], stores[0] / "step-1"):  # as `up` and `status` name it
        output = tmp_path / f"{path.name}.pt"
        source = StepSource(checkpoint=path)
        restore(RestoreRequest(source=source, output=output, form="torch"))
        tree = torch.load(output)
        assert tree["step"] == 1
        assert all(torch.equal(tree["model"][name], own) for name, own in one["model"].items())
        with refused_as(OTHER_STEP if path.name == "step-1" else NO_STEP_THERE):
            other = replace(source, step=7)
            restore(RestoreRequest(source=other, output=tmp_path / "none.pt", form="torch"))
    for path in (stores[1], stores[1] / "step-1"):
        with refused_as(told.BLOCKS_ALONE):
            verify_command.run(path, as_json=True)
