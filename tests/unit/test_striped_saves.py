"""Steps that are saved on several stores: any k of them give the step back, bit for bit."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.persisting import proved, replica_in, saver_for, take
from support.refused_as import refused_as

from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.erasure import striped_target

SHARD = "blocks.stripe"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 KiB: some stripes of a small checkpoint."""
    own = striped_target.StripedTarget.__init__
    monkeypatch.setattr(own, "__defaults__", (4096,))


@pytest.fixture
def replica(shm: Path) -> Iterator[Replica]:
    made = replica_in(shm / "state", 20_000)
    take(made)
    yield made
    made.close()


def config(folder: Path, data: int, parity: int, **more: object) -> PersistConfig:
    stores = tuple(str(folder / f"store{number}") for number in range(data + parity))
    return PersistConfig(
        targets=stores, data_blocks=data, parity_blocks=parity, every_steps=1, **more
    )  # type: ignore[arg-type]


def saved(folder: Path, state: Path, data: int, parity: int, step: int = 1) -> list[Path]:
    """The stores, with a step in them."""
    own = config(folder, data, parity)
    assert saver_for(own, folder / "staging", state).save(step).step == step
    return [Path(one) for one in own.targets]


def sums(folder: Path) -> dict[str, str]:
    """By hashlib alone."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files
    }


@pytest.fixture
def whole(replica: Replica, shm: Path, tmp_path: Path) -> dict[str, str]:
    """Of the same step as one store has it."""
    one = PersistConfig(target=str(tmp_path / "one"), every_steps=1)
    saver_for(one, tmp_path / "one-staging", shm / "state").save(1)
    return sums(tmp_path / "one/step-1")


def restored(store: Path, into: Path, said: list[str] | None = None) -> dict[str, str]:
    folder = download_step(
        str(store), "latest", into, said=(said if said is not None else []).append
    )
    assert proved(folder) == 1
    return sums(folder)


def test_every_loss_of_up_to_m_stores_is_read_from_any_store_that_is_left(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    for data, parity in ((4, 2), (2, 1), (1, 1), (1, 2)):
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
                said: list[str] = []
                from_one = left[number % len(left)]
                assert restored(from_one, own / f"got{number}", said) == whole
                assert len(said) == (lost > 0)
                for store in gone:
                    store.with_suffix(".away").rename(store)
        for store in stores[: parity + 1]:
            shutil.rmtree(store / "step-1")
        with refused_as(told.TOO_FEW_SHARDS, told.TOO_FEW_ANSWER):
            restored(stores[-1], own / "none")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def regions(store: Path) -> dict[str, int]:
    """A byte in each part of a store's file, found without our reader."""
    data = (store / "step-1" / SHARD).read_bytes()
    header = int.from_bytes(data[16:24], "little")
    return {
        "magic": 0, "number": 12, "length": 17, "identity": 30, "prefix's digest": 45,
        "header": 56 + header // 2, "first block": 56 + header + 9, "later block": len(data) // 2,
        "digests": len(data) - 40, "digests' digest": len(data) - 3,
    }  # fmt: skip


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
        assert restored(stores[1], tmp_path / f"got{number}") == whole, region
        path.write_bytes(kept)
    for store in stores[:2]:
        flip(store / "step-1" / SHARD, regions(store)["first block"])
    with refused_as(told.TOO_FEW_BLOCKS, stripe=0, found=1, needed=2) as refused:
        restored(stores[2], tmp_path / "none")
    assert all(str(store) in str(refused.value) for store in stores[:2])


def test_torn_swapped_and_foreign_files_are_told_apart(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    stores = saved(tmp_path, shm / "state", 2, 2)
    first, second, third, _ = (store / "step-1" / SHARD for store in stores)
    kept = first.read_bytes()
    for size in (0, 5, 60, len(kept) // 2, len(kept) - 1):
        first.write_bytes(kept[:size])
        assert restored(stores[2], tmp_path / f"torn{size}") == whole
    first.write_bytes(kept)
    stores[0].rename(tmp_path / "other")
    stores[1].rename(stores[0])
    (tmp_path / "other").rename(stores[1])
    assert restored(stores[0], tmp_path / "swapped") == whole
    second.write_bytes(third.read_bytes())  # twice the same one counts once
    shutil.rmtree(stores[0])
    said: list[str] = []
    assert restored(stores[2], tmp_path / "twice", said) == whole
    assert "another store has too" in said[0]
    another = replica_in(shm / "another", 20_000)
    take(another, 2)
    another.close()
    foreign = tmp_path / "foreign"
    saved(foreign, shm / "another", 2, 2, step=2)
    shutil.copyfile(foreign / "store2/step-2" / SHARD, third)
    shutil.rmtree(stores[1] / "step-1")
    with refused_as(told.TOO_FEW_SHARDS, found=1, needed=2):
        restored(stores[2], tmp_path / "none")


class Killed(BaseException):
    """As SIGKILL: nobody handles it, and nothing is written behind it."""


def test_killed_before_any_write_the_step_is_whole_or_not_there(
    replica: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowcheck.vault.persist.local_folder import LocalFolder

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
    own = config(tmp_path, 2, 1, keep_last=1)
    stores = [Path(one) for one in own.targets]
    saver_for(own, tmp_path / "staging", shm / "state").save(1)
    take(replica)
    ended = seen_old = seen_new = 0
    for writes in range(60):
        left[0] = writes
        try:
            saver_for(own, tmp_path / "staging", shm / "state").save(2)
            ended = writes
        except Killed:
            pass
        left[0] = 10**9
        got = download_step(str(stores[writes % 3]), "latest", tmp_path / f"got{writes}")
        step = proved(got)
        seen_old, seen_new = seen_old + (step == 1), seen_new + (step == 2)
        if ended:
            break
        if step == 2:  # again from before, for the writes behind
            shutil.rmtree(tmp_path / "staging", ignore_errors=True)
            for store in stores:
                shutil.rmtree(store)
            again = replica_in(shm / f"state{writes}", 20_000)
            take(again)
            saver_for(own, tmp_path / "staging", shm / f"state{writes}").save(1)
            again.close()
    assert ended and seen_old > 5 and seen_new >= 1
    names = {path.name for store in stores for path in store.iterdir()}
    assert names == {"checkpoints.json", "latest", "stripes.json", "step-2"}


def test_a_store_that_is_down_is_told_and_too_few_are_refused(
    replica: Replica, shm: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    own = config(tmp_path, 2, 2)
    stores = [Path(one) for one in own.targets]
    for store in stores[:2]:
        store.write_text("a disk that is no folder")
    saver = saver_for(own, tmp_path / "staging", shm / "state")
    saver.save(1)
    short = saver._place.short  # type: ignore[attr-defined]
    assert short.code == told.SAVED_WITHOUT.code
    assert (short.arguments["took"], short.arguments["left"]) == (2, 0)
    assert restored(stores[3], tmp_path / "got") == whole
    stores[2].rename(tmp_path / "away")
    stores[2].write_text("this too")
    with refused_as(told.TOO_FEW_ANSWER, answered=1, needed=2):
        saver.save(1)


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
