"""Reading a captured job, against reading and parsing its capture; and jobs too large for one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.netib import Options, generate

from bench import learning_large
from bench.measure import Figure, Scale, memory
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

SHAPES = ((600, 500), (500,), (500, 400), (400,), (400, 10), (10,))
"""2 MB of parameters."""
STEPS = (6, 12, 24)
QUICK_STEPS = (4, 8)
TARGET = 1 / 3
"""A reading takes three times as long as reading and parsing its capture, at most."""


def figures(scale: Scale, before: Sequence[Figure]) -> Iterator[Figure]:
    """LL128, three ranks, buffers broadcast in every forward: a job that was slow to read."""
    for steps in QUICK_STEPS if scale.quick else STEPS:
        options = Options(
            ranks=3,
            shapes=SHAPES,
            buffers=1800,
            counters=3,
            protocol="LL128",
            version=(2, 23),
            steps=steps,
            caps_bytes=(1 << 18, 1 << 20),
        )
        with memory(0) as folder:
            yield from _figures_of(generate(options, folder).files, steps, scale.repeats)
    yield from learning_large.figures(scale)


def _figures_of(files: Sequence[Path], steps: int, repeats: int) -> Iterator[Figure]:
    size = sum(file.stat().st_size for file in files) / 1e6
    spent: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        moments = [time.process_time()]
        seen = read_capture_files(files)
        moments.append(time.process_time())
        assert read_stream(seen.flows, seen.messages).job is not None
        moments.append(time.process_time())
        assert read_stream(seen.flows, seen.messages, results=False).job is not None
        moments.append(time.process_time())
        spent.append((moments[1] - moments[0], moments[2] - moments[1], moments[3] - moments[2]))
    parsed, whole, live = (sorted(column)[len(spent) // 2] for column in zip(*spent, strict=True))
    stage = f"learning, {steps} steps"
    note = f"{size:.0f} MB, {len(seen.messages)} messages, parsed in {parsed:.2f} s"
    for what, took, target in (
        ("analyze: every result", whole, TARGET),
        ("live: job and weights", live, TARGET),
    ):
        ratio = parsed / took
        yield Figure(
            stage, what, took, "s", ratio, "speed of reading and parsing", target, note, 0.0
        )
