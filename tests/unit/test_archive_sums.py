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
from flowcheck.vault.formats import archives, recorded, write
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


@pytest.mark.parametrize("known", [True, False])
def test_every_sum_in_each_of_dcps_archives_is_right_and_torch_makes_one_of_each_kind(
    step: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    make, kinds = archives.archive_of, list[torch.Tensor]()

    def noted(tensor: torch.Tensor) -> archives.Archive | None:
        kinds.append(tensor)
        found = make(tensor)
        assert found is not None
        return found if known else None

    monkeypatch.setattr(archives, "archive_of", noted)
    manifest = write(step, tmp_path / "out", "dcp")
    assert len({(one.dtype, one.shape) for one in kinds}) == len(kinds) < len(manifest.tensors)
    assert all(first % 64 == 0 for one in manifest.tensors.values() for _, first, _ in one.at)
    found = dict[str, torch.Tensor]()
    for index, one in FileSystemReader(tmp_path / "out").read_metadata().storage_data.items():
        raw = (tmp_path / "out" / one.relative_path).read_bytes()
        own = io.BytesIO(raw[one.offset : one.offset + one.length])
        with zipfile.ZipFile(own) as archive:
            assert archive.testzip() is None
        own.seek(0)
        found[index.fqn.removeprefix("model.")] = torch.load(own, weights_only=False)
    assert all(torch.equal(found[name], value) for name, value in step.model.items())


def test_an_archive_that_is_another_than_known_is_not_touched() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", b"content")
    whole = buffer.getvalue()
    directory = Piece(whole[whole.index(recorded.DIRECTORY) :])
    assert not recorded.put_sums([directory])
    assert not recorded.put_sums([Piece(b"12"), Piece(b"PK\x07\x08" + 12 * b"1")])
