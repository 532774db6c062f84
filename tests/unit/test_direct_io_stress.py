"""Files written and summed side by side: what they hold and are said to, and what ends them."""

from __future__ import annotations

import errno
import hashlib
import re
import threading
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.formatted import step_before
from support.refused_as import like, refused_as

from flowcheck.findings.catalog.checkpoint_damage import IN_PART, IN_TENSOR, TENSOR_CHANGED
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.ops.restore.step_lookup import found_step
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint_files import direct_io, sha256
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter, bytes_of
from flowcheck.replica.checkpoint_files.file_read_ahead import FilePiece
from flowcheck.replica.checkpoint_files.sha256 import Crc
from flowcheck.vault.checkpoint_formats.checkpoint_io import write

LIMIT_S = 60.0
BUFFER = 1 << 12
sizes = st.integers(0, 3 * BUFFER) | st.sampled_from([BUFFER - 1, BUFFER, BUFFER + 1])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(sizes, st.booleans()), max_size=6), *[st.booleans()] * 3)
def test_what_lies_there_is_what_was_given_and_has_the_sums_that_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[tuple[int, bool]],
    back: bool,
    direct: bool,
    together: bool,
) -> None:
    monkeypatch.setattr(direct_io, "BLOCK_BYTES", BUFFER)
    monkeypatch.setattr(direct_io, "DIRECT_BYTES", 1 if direct else 1 << 30)
    monkeypatch.setattr(sha256, "HAS_PAIRED_SHA", together and sha256.HAS_PAIRED_SHA)
    raws = [torch.randint(0, 256, (count,), dtype=torch.uint8) for count, _ in given]
    tensors = {f"t{n}": raw for n, raw in enumerate(raws) if given[n][1] and raw.numel()}
    pieces, crcs = [], []
    for n, raw in enumerate(raws):
        crcs.append(Crc())
        pieces.append(FilePiece(bytes_of(raw), f"t{n}" if f"t{n}" in tensors else "", crc=crcs[-1]))
        pieces.append(
            FilePiece(b"....", deferred_bytes=lambda own=crcs[-1]: own.value.to_bytes(4, "little"))
        )
    with ChecksummedWriter(reads_back=back) as sums:
        sums.write_file("own", tmp_path / "own", pieces, tensors)
        files, told = sums.files(), sums.tensors()
    parts = [raw.numpy().tobytes() for raw in raws]
    late = [zlib.crc32(part).to_bytes(4, "little") for part in parts]
    whole = b"".join(a + b for a, b in zip(parts, late, strict=True))
    assert (tmp_path / "own").read_bytes() == whole
    assert files["own"].sha256 == hashlib.sha256(whole).hexdigest()
    around = (b"" if f"t{n}" in tensors else part for n, part in enumerate(parts))
    rest = b"".join(a + b for a, b in zip(around, late, strict=True))
    assert files["own"].around == hashlib.sha256(rest).hexdigest()
    for label, raw in tensors.items():
        ((name, first, count),) = told[label].at
        assert whole[first : first + count] == raw.numpy().tobytes() and name == "own"
        assert told[label].sha256 == hashlib.sha256(whole[first : first + count]).hexdigest()


def _broken() -> bytes:
    raise MemoryError("none left")


@pytest.mark.parametrize(
    ("name", "late", "wanted"),
    [
        ("/dev/full", None, OSError),
        ("/dev/full", lambda: b"....", OSError),
        ("none/there", lambda: b"....", FileNotFoundError),
        ("own", _broken, MemoryError),
    ],
    ids=["full", "full with sums that wait", "no folder", "a thread that dies"],
)
def test_a_thread_that_fails_ends_the_other_and_says_why(
    tmp_path: Path, name: str, late: object, wanted: type[Exception]
) -> None:
    tensor = torch.ones(1 << 20)
    pieces = [FilePiece(bytes_of(tensor), "ones"), FilePiece(b"....", deferred_bytes=late)]  # type: ignore[arg-type]
    before = set(threading.enumerate())
    with pytest.raises(wanted) as caught, ChecksummedWriter() as sums:
        sums.write_file("own", tmp_path / name, pieces, {"ones": tensor})
        sums.files()
    assert set(threading.enumerate()) <= before
    if name == "/dev/full":
        assert isinstance(caught.value, OSError)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, name)


@pytest.mark.parametrize("form", ["torch", "dcp", "safetensors", "flowcheck"])
@pytest.mark.parametrize("of", ["model", "optimizer"])
def test_a_source_that_was_changed_is_refused_when_it_is_read_and_nothing_of_it_stays(
    tmp_path: Path, form: str, of: str
) -> None:
    step = step_before()
    kept = checkpoint_save.save_trainer_state(step.trainer_state, tmp_path / "kept", step.layout)
    file = kept / f"{of}.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 16
    file.write_bytes(raw)
    out = tmp_path / "out"
    out.mkdir()
    with (
        refused_as(
            like(IN_PART, part=re.compile(f"{of}/")),
            like(IN_TENSOR, tensor=re.compile(f"{of}/")),
            why=TENSOR_CHANGED,
        ),
        found_step(StepSource(checkpoint=kept), in_place=True) as found,
    ):
        write(found.contents(form), out / "own", form)
    assert list(out.iterdir()) == []
