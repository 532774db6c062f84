"""A few bytes of a .metadata that stand for much: refused, not worked through.

A pickle may name one part again by two bytes. Whoever walks through the parts, hashes, copies or
shows them does so once for every time; each file here would take hours, or all memory.
"""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import pytest
import torch
from support.refused_as import refused_as
from torch.distributed.checkpoint.state_dict_saver import save

from flowcheck.errors import StateError
from flowcheck.findings.catalog import dcp_checkpoints as findings
from flowcheck.vault.checkpoint_formats.dcp_reader import read_tree

METADATA = "torch.distributed.checkpoint.metadata"
MANY = 200_000
pytestmark = pytest.mark.timeout(60)


def text(word: str) -> bytes:
    raw = word.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def record(name: str, module: str = METADATA, **state: bytes) -> bytes:
    """An object of torch's with these values, each a piece of a pickle."""
    values = b"".join(text(key) + value for key, value in state.items())
    return named(module, name) + b")\x81}(" + values + b"ub"


def tree(word: str, value: bytes) -> bytes:
    """A dictionary of one item."""
    return b"}" + text(word) + value + b"s"


def metadata(tensors: bytes = b"}", stored: bytes = b"}", planned: bytes = b"N") -> bytes:
    own = record("Metadata", state_dict_metadata=tensors, planner_data=planned, storage_data=stored)
    return b"\x80\x04" + own + b"."


def tensor(size: bytes = b")", chunks: bytes = b"]") -> bytes:
    properties = record("TensorProperties", dtype=named("torch", "float32"))
    return record("TensorStorageMetadata", size=size, chunks=chunks, properties=properties)


def doubled() -> bytes:
    """A tuple of two tuples, each of two, and so on: 2^60 parts."""
    return b")" + b"2\x86" * 60


def stored_as(name: bytes = text("__0_0.distcp"), first: bytes = b"K\x00") -> bytes:
    at = b"(" + text("w") + b"K\x00t"
    place = "torch.distributed.checkpoint.filesystem"
    of = {"relative_path": name, "offset": first, "length": b"K\x01"}
    return b"}" + at + record("_StorageInfo", place, **of) + b"s"


def chunk(offsets: bytes) -> bytes:
    return record("ChunkStorageMetadata", offsets=offsets, sizes=b"K\x01\x85")


LONG = b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20)
"""A number of a million bytes."""
AGAIN = b"h\x07"
"""What was remembered as the seventh."""
KNOWN = b"q\x07"
ONE = b"K\x01\x85"
FILES = {
    "a name that is many": metadata(tree("w", tensor(ONE)), stored_as(doubled())),
    "a path that is many": metadata(tree("w", tensor(b"K\x00\x85")), planned=tree("w", doubled())),
    "an offset that is many": metadata(tree("w", tensor(ONE, b"(" + chunk(doubled()) + b"l"))),
    "a dtype that is many": metadata(
        tree(
            "w",
            record(
                "TensorStorageMetadata",
                size=ONE,
                properties=record("TensorProperties", dtype=doubled()),
            ),
        )
    ),
    "a long number as each key": metadata(
        b"}(" + LONG + KNOWN + b"N" + (AGAIN + b"N") * MANY + b"u"
    ),
    "a long number as each place": metadata(tree("w", tensor(ONE)), stored_as(first=LONG)),
    "dimensions of each tensor": metadata(
        b"}("
        + text("w")
        + tensor(b"(" + b"K\x00" * 5000 + b"t")
        + KNOWN
        + b"".join(text(f"w{n}") + AGAIN for n in range(5000))
        + b"u"
    ),
    "dimensions alone": metadata(tree("w", tensor(b"(" + b"K\x00" * 100 + b"t"))),
    "what an object is made with": b"\x80\x04("
    + b"K\x00" * MANY
    + b"t"
    + KNOWN
    + b"0]("
    + (named(METADATA, "StorageMeta") + AGAIN + b"\x81") * MANY
    + b"e.",
    "what a shape is made of": b"\x80\x04]("
    + b"K\x00" * MANY
    + b"e\x85"
    + KNOWN
    + b"0]("
    + (named("torch", "Size") + AGAIN + b"R") * MANY
    + b"e.",
    "the state of an object": b"\x80\x04}("
    + b"".join(text(str(n)) + b"N" for n in range(MANY))
    + b"u"
    + KNOWN
    + b"0]("
    + (named(METADATA, "StorageMeta") + b")\x81" + AGAIN + b"b") * MANY
    + b"e.",
}


@pytest.mark.parametrize("what", FILES)
def test_what_is_much_more_than_the_file_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(FILES[what])
    with pytest.raises(StateError):
        read_tree(tmp_path)


def test_a_shard_that_is_told_again_and_again_is_read_once(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({"w": torch.zeros(1)}, checkpoint_id=tmp_path)
    raw = (tmp_path / ".metadata").read_bytes()
    assert read_tree(tmp_path)["w"].tolist() == [0.0]
    shard = next(tmp_path.glob("*.distcp"))
    place = "torch.distributed.checkpoint.filesystem"
    length = b"J" + struct.pack("<i", shard.stat().st_size)
    info = record(
        "_StorageInfo", place, relative_path=text(shard.name), offset=b"K\x00", length=length
    )
    chunks = b"(" + chunk(b"K\x00\x85") + KNOWN + AGAIN * MANY + b"l"
    told = metadata(tree("w", tensor(ONE, chunks)), b"}(" + text("w") + b"K\x00\x86" + info + b"u")
    assert len(told) < len(raw) + 3 * MANY
    (tmp_path / ".metadata").write_bytes(told)
    with refused_as(findings.SHARD_TWICE):
        read_tree(tmp_path)
