"""Checkpoints through the S3 interface of OpenStack Swift, which proves signatures and parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import swift
from support.persisting import proved, replica_in, saver_for, take
from support.refused_as import refused_as
from support.s3 import BUCKET

from flowcheck.config import PersistConfig
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.persist import s3_multipart
from flowcheck.vault.persist.rate_limit import TransferPace

PART = 5 << 20
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(bool(swift.missing()), reason=f"lacks {swift.missing()}"),
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with swift.swift(tmp_path_factory.mktemp("swift")) as made:
        yield made


@pytest.fixture
def replica(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    """Its model is of two parts and its optimizer of four."""
    monkeypatch.setattr(s3_multipart, "PART_BYTES", PART)
    made = replica_in(shm / "state", 2_000_000)
    take(made)
    yield made
    made.close()


def config(port: int, **more: Any) -> PersistConfig:
    stated = {"target": f"s3://{BUCKET}/job", "options": swift.options(port), "keep_last": 2}
    return PersistConfig(**(stated | {"every_steps": 1, "timeout_s": 10.0} | more))  # type: ignore[arg-type]


def test_parts_retention_and_what_comes_back(
    port: int, replica: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver_for(config(port), tmp_path / "staging", shm / "state").save(1)
    take(replica)
    sound = TransferPace.note_moved

    def moved(self: TransferPace, count: int) -> None:
        sound(self, count)
        if self.moved_bytes > 2 * PART:
            self.stop()

    with monkeypatch.context() as patched:
        patched.setattr(TransferPace, "note_moved", moved)
        with refused_as(stores.STOPPED):
            saver_for(config(port), tmp_path / "staging", shm / "state").save(2)
    again = saver_for(config(port), tmp_path / "staging", shm / "state")
    assert again.save(2).step == 2
    assert again.pace.skipped_bytes >= 2 * PART
    take(replica)
    again.save(3)
    found = swift.client(port).list_objects_v2(Bucket=BUCKET, Prefix="job/")["Contents"]
    folders = {one["Key"].split("/")[1] for one in found}
    assert folders == {"checkpoints.json", "latest", "step-2", "step-3"}
    assert not swift.client(port).list_multipart_uploads(Bucket=BUCKET).get("Uploads")
    own = swift.options(port)
    got = download_step(f"s3://{BUCKET}/job", "latest", tmp_path / "got", options=own)
    assert proved(got) == 3


@pytest.mark.parametrize("wrong", [{"secret": "another"}, {"key": "nobody"}])
def test_wrong_credentials_are_told_in_words(
    port: int, replica: Replica, shm: Path, tmp_path: Path, wrong: dict[str, str]
) -> None:
    own = config(port, options=swift.options(port) | wrong)
    with refused_as(stores.ACCESS_DENIED):
        saver_for(own, tmp_path / "staging", shm / "state").save(1)
