"""Captures that began amid a job of the generator's, and what of it they hold."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path

from support.netib import Truth
from support.staged import dealt

ITEM_BYTES = 4


def frames_in(file: Path) -> int:
    count = 0

    def deal(number: int, _: bytes) -> int | None:
        nonlocal count
        count = number + 1
        return None

    dealt(file, file.parent / "counted", 1, deal)
    return count


def behind(file: Path, frame: int, folder: Path) -> Path:
    """What a capture that began at this frame holds of it."""
    return dealt(file, folder, 1, lambda at, _: 0 if at >= frame else None)[0]


def gradient_of(truth: Truth, step: int) -> bytes:
    """A step's mean gradient in registration order."""
    shapes = truth.options.shapes
    buckets = [list(range(len(shapes)))] if step == 0 else truth.buckets
    parts: dict[int, bytes] = {}
    reduced = [each.result for each in truth.gradients if each.step == step]
    for bucket, result in zip(buckets, reduced, strict=True):
        at = 0
        for parameter in bucket:
            size = prod(shapes[parameter]) * ITEM_BYTES
            parts[parameter] = result[at : at + size]
            at += size
        assert at == len(result)
    return b"".join(parts[parameter] for parameter in range(len(shapes)))


def is_true_but_for(gradient: bytes, missing: Iterable[tuple[int, int]], truth: bytes) -> bool:
    """Whether a gradient has the truth's bytes, and zeros in these ranges, which never came."""
    at = 0
    for start, stop in (*missing, (len(truth), len(truth))):
        if gradient[at:start] != truth[at:start] or any(gradient[start:stop]):
            return False
        at = stop
    return len(gradient) == len(truth)


def truth_of(truth: Truth) -> list[bytes]:
    return [gradient_of(truth, step) for step in range(truth.options.steps)]


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def recorded_behind(file: Path, share: float, out: Path) -> Path:
    """What a capture that began behind a share of its frames holds of a pcapng file."""
    raw = file.read_bytes()
    blocks, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at + 4 : at + 8], "little")
        blocks.append(raw[at : at + size])
        at += size
    packets = [n for n, block in enumerate(blocks) if block[:4] == b"\x06\0\0\0"]  # enhanced
    over = set(packets[: int(share * len(packets))])
    out.write_bytes(b"".join(block for n, block in enumerate(blocks) if n not in over))
    return out
