"""Packs what the recorder wrote of a job into two files: what a mirror of rank 0's port could see,
and the truth."""

from __future__ import annotations

import json
import lzma
import re
import struct
from pathlib import Path
from typing import Any

RECORD = struct.Struct("<IIQQIiII")
"""struct record of recorder.c."""
CONNECTED, ACCEPTED, SENT, POSTED = 1, 2, 3, 4
CALL = re.compile(
    r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)
"""A collective in NCCL's log (NCCL_DEBUG_SUBSYS=TUNING; src/enqueue.cc, topoGetAlgoInfo)."""

Record = tuple[tuple[int, ...], bytes]


def records(path: Path) -> list[Record]:
    """[(fields of struct record, bytes sent)] of one process, in order."""
    blob, at, found = path.read_bytes(), 0, []
    while at + RECORD.size <= len(blob):
        one = RECORD.unpack_from(blob, at)
        at += RECORD.size
        size = one[4] if one[0] == SENT else 0
        found.append((one, blob[at : at + size]))
        at += size
    return found


def connections_of_first(
    by_rank: dict[int, list[Record]], rank_of: dict[int, int]
) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int]]:
    """([(sender, receiver)] of those that begin or end at rank 0, {(rank, its number): index})."""
    accepted = {
        (rank, one[7]): one[1]
        for rank, seen in by_rank.items()
        for one, _ in seen
        if one[0] == ACCEPTED
    }
    ends: list[tuple[int, int]] = []
    number: dict[tuple[int, int], int] = {}
    for rank, seen in by_rank.items():
        for one, _ in seen:
            target = rank_of[one[6]] if one[0] == CONNECTED else -1
            if target >= 0 and 0 in (rank, target):
                number[rank, one[1]] = number[target, accepted[target, one[7]]] = len(ends)
                ends.append((rank, target))
    return ends, number


def wire_of(folder: Path, ranks: int) -> tuple[list[tuple[int, int]], bytes]:
    """(ends of each connection, records in order of time). A record is the rank that wrote it, the
    number of the connection, struct record, and what was sent."""
    files = {rank: next(folder.glob(f"record{rank}.*")) for rank in range(ranks)}
    by_rank = {rank: records(path) for rank, path in files.items()}
    ends, number = connections_of_first(
        by_rank, {int(path.suffix[1:]): rank for rank, path in files.items()}
    )
    kept = [
        (one[2], rank, number[rank, one[1]], one, payload)
        for rank, seen in by_rank.items()
        for one, payload in seen
        if one[0] in (SENT, POSTED) and (rank, one[1]) in number
    ]
    kept.sort(key=lambda each: each[0])
    return ends, b"".join(
        struct.pack("<II", rank, connection) + RECORD.pack(*one) + payload
        for _, rank, connection, one, payload in kept
    )


def calls_of(log: str) -> list[list[Any]]:
    """[[collective, bytes, algorithm, protocol, first channel, last channel]] of rank 0's log."""
    return [
        [kind, int(size), algorithm, protocol, int(low), int(high)]
        for kind, size, algorithm, protocol, low, high in CALL.findall(log)
    ]


def write(to: Path, name: str, folder: Path, ranks: int, gpu: str) -> None:
    """NAME.wire.xz and NAME.json below `to`, from what a job left in `folder`."""
    ends, wire = wire_of(folder, ranks)
    truth = json.loads((folder / "truth0.json").read_text())
    truth |= {"gpu": gpu, "ranks": ranks, "connections": ends}
    truth["calls"] = calls_of((folder / "nccl0.log").read_text())
    to.mkdir(parents=True, exist_ok=True)
    (to / f"{name}.wire.xz").write_bytes(lzma.compress(wire, preset=9))
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in truth.items())
    (to / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
