"""Archives whose check sums are put in by us, against zipfile, which checks each."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from support.steps import given_of, layout_of, made, trained
from torch.distributed.checkpoint import FileSystemReader

from flowcheck.replica.checkpoint_files.file_read_ahead import FilePiece
from flowcheck.vault.checkpoint_formats import torch_save_archive
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import write


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    net, optimizer = made()
    trained(net, optimizer, 1, 2)
    given = given_of(net, optimizer, 2)
    given.model["large"] = torch.randn(300, 100)
    assert given.model["large"].nbytes > torch_save_archive.LARGE_BYTES
    return contents_of(given, layout_of(net))


@pytest.mark.parametrize("known", [True, False])
def test_every_sum_in_torchs_archive_is_right_and_torchs_setting_stays(
    step: CheckpointContents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    if not known:  # as where torch writes an archive that is not known here
        monkeypatch.setattr(torch_save_archive, "fill_crcs", lambda pieces: False)
    write(step, tmp_path / "out", "torch")
    assert torch.serialization.get_crc32_options()
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert archive.testzip() is None
        assert sum("/data/" in name for name in archive.namelist()) > len(step.model)
    loaded = torch.load(tmp_path / "out", weights_only=True)
    assert all(torch.equal(loaded["model"][name], value) for name, value in step.model.items())


@pytest.mark.parametrize("known", [True, False])
def test_every_sum_in_each_of_dcps_archives_is_right_and_torch_makes_one_of_each_kind(
    step: CheckpointContents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    make, kinds = torch_save_archive.archive_of, list[torch.Tensor]()

    def noted(tensor: torch.Tensor) -> torch_save_archive.TensorArchive | None:
        kinds.append(tensor)
        found = make(tensor)
        assert found is not None
        return found if known else None

    monkeypatch.setattr(torch_save_archive, "archive_of", noted)
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
    directory = FilePiece(whole[whole.index(torch_save_archive.DIRECTORY) :])
    assert not torch_save_archive.fill_crcs([directory])
    assert not torch_save_archive.fill_crcs(
        [FilePiece(b"12"), FilePiece(b"PK\x07\x08" + 12 * b"1")]
    )
