"""Checkpoints in Google's and in Azure's object stores: servers that others wrote, on loopback."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import clouds
from support.clouds import Cloud
from support.persisting import proved, replica_in, saver_for, take
from support.refused_as import refused_as

from flowcheck.config import PersistConfig
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.persist.rate_limit import TransferPace
from flowcheck.vault.persist.saver import Saver

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),  # adlfs and aiohttp
]
LACKS = {clouds.google: clouds.lacks_google(), clouds.azure: clouds.lacks_azure()}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            kind, id=kind.__name__, marks=pytest.mark.skipif(bool(what), reason=f"lacks {what}")
        )
        for kind, what in LACKS.items()
    ],
)
def cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    with request.param(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture
def replica(shm: Path) -> Iterator[Replica]:
    """Its files are larger than a block of those that are sent."""
    made = replica_in(shm / "state", 5_000_000)
    yield made
    made.close()


def config(cloud: Cloud, name: str, **more: Any) -> PersistConfig:
    stated = {"target": f"{cloud.url}/{name}", "options": cloud.options, "keep_last": 2}
    return PersistConfig(**(stated | {"every_steps": 1, "timeout_s": 10.0} | more))


def saver(own: PersistConfig, tmp_path: Path, shm: Path) -> Saver:
    return saver_for(own, tmp_path / "staging", shm / "state")


def test_latest_names_what_others_read_whole_and_old_ones_go(
    cloud: Cloud, replica: Replica, shm: Path, tmp_path: Path
) -> None:
    saves = saver(config(cloud, "kept"), tmp_path, shm)
    for step in (1, 2, 3):
        take(replica)
        assert saves.save(step).step == step
    read = cloud.folder("kept", tmp_path / "read")
    assert {one.name for one in read.iterdir()} == {
        "checkpoints.json",
        "latest",
        "step-2",
        "step-3",
    }
    assert (read / "latest").read_text() == "step-3\n"
    assert [proved(read / name) for name in ("step-2", "step-3")] == [2, 3]
    got = download_step(f"{cloud.url}/kept", "latest", tmp_path / "got", options=cloud.options)
    assert proved(got) == 3


def test_a_save_that_was_stopped_leaves_latest_and_goes_on(
    cloud: Cloud, replica: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(replica)
    saver(config(cloud, "cut"), tmp_path, shm).save(1)
    take(replica)
    sound = TransferPace.note_moved

    def moved(self: TransferPace, count: int) -> None:
        sound(self, count)
        if self.moved_bytes > 30 << 20:
            self.stop()

    with monkeypatch.context() as patched:
        patched.setattr(TransferPace, "note_moved", moved)
        with refused_as(stores.STOPPED):
            saver(config(cloud, "cut"), tmp_path, shm).save(2)
    read = cloud.folder("cut", tmp_path / "between")
    assert (read / "latest").read_text() == "step-1\n"
    assert proved(read / "step-1") == 1
    again = saver(config(cloud, "cut"), tmp_path, shm)
    assert again.save(2).step == 2
    assert again.pace.skipped_bytes > 0
    assert proved(cloud.folder("cut", tmp_path / "then") / "step-2") == 2


def test_what_is_wrong_is_told_in_words(
    cloud: Cloud, replica: Replica, shm: Path, tmp_path: Path
) -> None:
    take(replica)
    nowhere = cloud.url.replace(clouds.BOX, "nobody")
    with refused_as(stores.NO_BUCKET):
        saver(config(cloud, "x", target=f"{nowhere}/x"), tmp_path / "a", shm).save(1)
    if cloud.wrong:
        with refused_as(stores.ACCESS_DENIED):
            saver(config(cloud, "x", options=cloud.wrong), tmp_path / "b", shm).save(1)


def test_a_store_that_says_nothing_any_more_is_given_up(
    cloud: Cloud, replica: Replica, shm: Path, tmp_path: Path
) -> None:
    own = config(cloud, "mute", timeout_s=1.0)
    take(replica)
    assert saver(own, tmp_path, shm).save(1).step == 1
    take(replica)
    cloud.process.send_signal(signal.SIGSTOP)
    try:
        with refused_as(stores.NOT_REACHED):
            saver(own, tmp_path, shm).save(2)
    finally:
        cloud.process.send_signal(signal.SIGCONT)
    assert saver(own, tmp_path, shm).save(2).step == 2
