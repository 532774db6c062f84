"""Archives whose check sums are put in by us, against zipfile, which checks each."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from support.steps import given_of, layout_of, made, trained
from torch.distributed.checkpoint import FileSystemReader

from flowcheck.replica.files.pieces import Piece
from flowcheck.vault.formats import recorded, write
from flowcheck.vault.formats.parts import Parts, parts_of


@pytest.fixture(scope="module")
def step() -> Parts:
    net, optimizer = made()
    trained(net, optimizer, 1, 2)
    given = given_of(net, optimizer, 2)
    given.model["large"] = torch.randn(300, 100)
    assert given.model["large"].nbytes > recorded.LARGE_BYTES
    return parts_of(given, layout_of(net))


@pytest.mark.parametrize("known", [True, False])
def test_every_sum_in_torchs_archive_is_right_and_torchs_setting_stays(
    step: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    if not known:  # as where torch writes an archive that is not known here
        monkeypatch.setattr(recorded, "put_sums", lambda pieces: False)
    write(step, tmp_path / "out", "torch")
    assert torch.serialization.get_crc32_options()
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert archive.testzip() is None
        assert sum("/data/" in name for name in archive.namelist()) > len(step.model)
    loaded = torch.load(tmp_path / "out", weights_only=True)
    assert all(torch.equal(loaded["model"][name], value) for name, value in step.model.items())


def test_every_sum_in_each_of_dcps_archives_is_right(
    step: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, told = recorded.put_sums, list[bool]()

    def noted(pieces: list[Piece]) -> bool:
        told.append(put(pieces))
        return told[-1]

    monkeypatch.setattr(recorded, "put_sums", noted)
    write(step, tmp_path / "out", "dcp")
    assert told and all(told)  # nothing is recorded twice
    items = FileSystemReader(tmp_path / "out").read_metadata().storage_data.values()
    raws = [
        (tmp_path / "out" / one.relative_path).read_bytes()[one.offset : one.offset + one.length]
        for one in items
    ]
    archives = [raw for raw in raws if raw[:2] == b"PK"]
    assert len(archives) > len(step.model)
    for raw in archives:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            assert archive.testzip() is None


def test_an_archive_that_is_another_than_known_is_not_touched() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", b"content")
    whole = buffer.getvalue()
    directory = recorded.Piece(whole[whole.index(recorded.DIRECTORY) :])
    assert not recorded.put_sums([directory])
    assert not recorded.put_sums([recorded.Piece(b"12"), recorded.Piece(b"PK\x07\x08" + 12 * b"1")])
