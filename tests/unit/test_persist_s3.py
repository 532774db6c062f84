"""Checkpoints in an S3 store: what boto3 reads there is whole, and nothing is sent twice."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.free import free_port
from support.persisting import proved, replica_in, saver_for, take
from support.refused_as import refused_as
from support.s3 import BUCKET, KEY, Server, begun, server

from flowcheck.config import PersistConfig
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.persist import s3_multipart
from flowcheck.vault.persist.rate_limit import TransferPace
from flowcheck.vault.persist.saver import Saver

pytest.importorskip("s3fs")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PART = 5 << 20
"""S3's least part (Amazon S3 User Guide, "Multipart upload limits")."""


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def replica(shm: Path) -> Iterator[Replica]:
    made = replica_in(shm / "state")
    yield made
    made.close()


@pytest.fixture
def large(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    """Its model is of two parts and its optimizer of four."""
    monkeypatch.setattr(s3_multipart, "PART_BYTES", PART)
    made = replica_in(shm / "state", 2_000_000)
    yield made
    made.close()


def config(store: Server, name: str, **more: Any) -> PersistConfig:
    target = f"s3://{BUCKET}/{name}"
    stated = {"options": store.options, "every_steps": 1, "timeout_s": 5.0} | more
    return PersistConfig(target=target, **stated)


def keys(store: Server, name: str) -> list[str]:
    found = store.client().list_objects_v2(Bucket=BUCKET, Prefix=f"{name}/")
    return [one["Key"].removeprefix(f"{name}/") for one in found.get("Contents", [])]


def saver_with(store: Server, tmp_path: Path, shm: Path, name: str, **more: Any) -> Saver:
    return saver_for(config(store, name, **more), tmp_path / "staging", shm / "state")


def test_latest_names_what_boto3_reads_whole_and_old_ones_go(
    store: Server, replica: Replica, shm: Path, tmp_path: Path
) -> None:
    saver = saver_with(store, tmp_path, shm, "kept", keep_last=2)
    for step in (1, 2, 3):
        take(replica)
        assert saver.save(step).step == step
    folders = {key.split("/")[0] for key in keys(store, "kept")}
    assert folders == {"checkpoints.json", "latest", "step-2", "step-3"}
    read = store.folder("kept", tmp_path / "read")
    assert (read / "latest").read_text() == "step-3\n"
    assert [proved(read / name) for name in ("step-2", "step-3")] == [2, 3]
    assert list((tmp_path / "staging").iterdir()) == []


def test_parts_that_were_sent_before_a_kill_are_not_sent_again(
    store: Server, large: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(large)
    first = saver_with(store, tmp_path, shm, "parts")
    sent: list[int] = []
    sound = TransferPace.note_moved

    def moved(self: TransferPace, count: int) -> None:
        sent.append(count)
        sound(self, count)
        if sum(sent) > 3 * PART:
            self.stop()

    monkeypatch.setattr(TransferPace, "note_moved", moved)
    with refused_as(stores.STOPPED):
        first.save(1)
    assert "latest" not in keys(store, "parts")
    monkeypatch.undo()
    monkeypatch.setattr(s3_multipart, "PART_BYTES", PART)
    take(large)
    second = saver_with(store, tmp_path, shm, "parts")
    assert second.unfinished()
    assert second.save(2).step == 1, "what was begun is ended first"
    assert second.pace.skipped_bytes >= 3 * PART
    assert second.pace.skipped_bytes + second.pace.moved_bytes == second.durable().bytes  # type: ignore[union-attr]
    read = store.folder("parts", tmp_path / "read")
    assert proved(read / "step-1") == 1
    assert second.save(2).step == 2
    assert not store.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads")


def test_what_became_another_at_the_store_is_found_and_sent_again(
    store: Server, replica: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowcheck.vault.persist.object_store import ObjectStore

    take(replica)
    saver = saver_with(store, tmp_path, shm, "torn")
    sound = ObjectStore.send

    def send(self: ObjectStore, folder: Path, name: str, *rest: Any) -> None:
        sound(self, folder, name, *rest)
        key = f"torn/{name}/model.safetensors"
        size = (folder / "model.safetensors").stat().st_size
        store.client().put_object(Bucket=BUCKET, Key=key, Body=b"x" * size)

    monkeypatch.setattr(ObjectStore, "send", send)
    with refused_as(stores.NOT_AS_SENT, place=re.compile(r"model\.safetensors$")):
        saver.save(1)
    assert "latest" not in keys(store, "torn")
    monkeypatch.undo()
    assert saver.save(1).step == 1
    assert proved(store.folder("torn", tmp_path / "read") / "step-1") == 1


def test_what_is_wrong_with_a_store_is_told_in_words(
    store: Server, replica: Replica, shm: Path, tmp_path: Path
) -> None:
    take(replica)
    absent = config(store, "x")
    absent = PersistConfig(
        target="s3://nobody-made-this/x", every_steps=1, options=absent.options, timeout_s=5
    )
    with refused_as(stores.NO_BUCKET):
        saver_for(absent, tmp_path / "staging", shm / "state").save(1)
    nowhere = store.options | {"endpoint_url": f"http://127.0.0.1:{free_port()}"}
    limits = {"retries": {"max_attempts": 1}}
    away = config(store, "x", options=nowhere | {"config_kwargs": limits})
    with refused_as(stores.NOT_REACHED):
        saver_for(away, tmp_path / "staging", shm / "state").save(1)


def test_a_store_that_never_answers_is_given_up(
    replica: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    take(replica)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        limits = {"retries": {"max_attempts": 1}}
        options = {"key": KEY, "secret": "x", "endpoint_url": url, "config_kwargs": limits}
        own = PersistConfig(
            target=f"s3://{BUCKET}/x", options=options, every_steps=1, timeout_s=0.3
        )
        with refused_as(stores.NOT_REACHED):
            saver_for(own, tmp_path / "staging", shm / "state").save(1)
    replica.apply(2, replica.parameters().copy())


@pytest.mark.nightly
def test_a_store_that_goes_away_and_comes_back_is_sent_to_again(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    with server() as other:
        saver = saver_with(other, tmp_path, shm, "back")
        take(replica)
        saver.save(1)
        other.process.kill()
        other.process.wait()
        take(replica)
        with refused_as(stores.NOT_REACHED):
            saver.save(2)
        other.process = begun(other.port)  # which has forgotten all of it
        other.client().create_bucket(Bucket=BUCKET)
        assert saver.save(2).step == 2
        assert proved(other.folder("back", tmp_path / "read") / "step-2") == 2
        assert KEY not in str(keys(other, "back"))
