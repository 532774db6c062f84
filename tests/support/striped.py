"""Steps that are saved on several stores, and what others than we say of their files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support.persisting import proved, saver_for

from flowcheck.config import PersistConfig
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.download.striped_source import open_striped
from flowcheck.vault.erasure import striped_target

SHARD = "blocks.stripe"


def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 KiB: some stripes of a small checkpoint."""
    own = striped_target.StripedTarget.__init__
    monkeypatch.setattr(own, "__defaults__", (4096, 60.0))


def whole_sums(shm: Path, tmp_path: Path) -> dict[str, str]:
    """Of step 1 as one store has it."""
    one = PersistConfig(target=str(tmp_path / "one"), every_steps=1)
    saver_for(one, tmp_path / "one-staging", shm / "state").save(1)
    return sums(tmp_path / "one/step-1")


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


def restored(
    store: Path, into: Path, said: list[str] | None = None, step: int | str = "latest"
) -> dict[str, str]:
    """As `flowcheck restore --from` has it on disk."""
    lines = said if said is not None else []
    folder = download_step(str(store), step, into, said=lines.append)
    assert proved(folder) == 1
    return sums(folder)


def read_back(store: Path | str, step: int | str = "latest") -> tuple[int, dict[str, str], int]:
    """(step, sha256 of each file, sentences on what was read around), in memory."""
    source = open_striped(str(store), {}, 10.0)
    assert source is not None
    offer = source.find(step)
    files = {
        one.name: hashlib.sha256(source.read(offer, one, 0, one.size_bytes)).hexdigest()
        for one in offer.listing.files
    }
    return offer.listing.step, files, len(source.remarks())


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
