"""DCP's own writer, but for the files of data: their bytes are told, and written by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from flowcheck.replica.files.pieces import Piece
from flowcheck.vault.formats.archives import Archives
from flowcheck.vault.formats.recorded import Recorder, joined

DATA_SUFFIX = ".distcp"
"""torch/distributed/checkpoint/filesystem.py, DEFAULT_SUFFIX."""
FILES = 2
"""Summed at once."""


def writer_of(
    folder: Path,
    at: Mapping[tuple[int, int], str],
    done: Callable[[str, list[Piece]], None],
) -> Any:
    """A storage writer of DCP's. at: labels of tensors by where they lie in memory; done: has the
    name and the pieces of every file of data."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future

    class Writer(FileSystemWriter):
        def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
            archives, met = Archives(), set[str]()
            results: list[WriteResult] = []
            for number, items in enumerate(_shares(plan.items)):
                name = f"{plan.storage_data.prefix}{number}{DATA_SUFFIX}"
                recorder = Recorder(at, met)
                for item in items:
                    first = recorder.aligned()
                    data: Any = planner.resolve_data(item)
                    if item.type == WriteItemType.BYTE_IO:
                        recorder.write(data.getbuffer())
                    else:
                        archives.put(data, recorder)
                    place = _StorageInfo(name, first, recorder.tell() - first)
                    results.append(WriteResult(item.index, place.length, place))
                done(name, list(joined(recorder.pieces)))
            told: Future[list[WriteResult]] = Future()
            told.set_result(results)
            return told

    return Writer(folder, sync_files=False)


def _shares(items: Sequence[Any]) -> list[list[Any]]:
    """Of each file, in order and as equal as their tensors are."""
    shares: list[list[Any]] = [[] for _ in range(FILES)]
    held = [0] * FILES
    for item in items:
        least = held.index(min(held))
        shares[least].append(item)
        if item.tensor_data is not None:
            of = item.tensor_data
            held[least] += prod(of.chunk.sizes) * of.properties.dtype.itemsize
    return shares
