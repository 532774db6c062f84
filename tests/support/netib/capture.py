"""Runs a job and writes what its mirror points saw."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from support.netib import noise
from support.netib.encapsulation import wrap
from support.netib.fabric import Emitted, Fabric
from support.netib.options import Options, Truth
from support.netib.trainer import Trainer

STORAGE_RANK = 201


@dataclass
class Generated:
    """Captures, one a mirror point, and what is true of the job."""

    files: list[Path]
    truth: Truth


def generate(options: Options, folder: Path) -> Generated:
    """Write one pcap per mirror point into `folder`."""
    rng = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)
    truth = Truth(options)
    fabric = Fabric(options, rng)
    trainer = Trainer(options, rng, fabric, truth)
    trainer.train()
    start = first_captured(options, trainer, rng)
    for operation in trainer.operations:
        operation.about.complete = operation.first_frame >= start
    frames = with_noise(options, rng, fabric)
    begin_us = fabric.log[start].at_us if start else 0
    files = []
    for rank in options.mirrored:
        for rail in range(options.rails):
            port = fabric.port(rank, rail)
            seen = [
                each
                for each in frames
                if each.at_us >= begin_us
                and (
                    (each.src == port and options.directions != "rx")
                    or (each.dst == port and options.directions != "tx")
                )
            ]
            path = folder / f"rank{rank}-{rail}.pcap"
            write(path, options, impaired(options, rng, seen, path.name, truth))
            files.append(path)
    return Generated(files, truth)


def first_captured(options: Options, trainer: Trainer, rng: np.random.Generator) -> int:
    """Index in the log where the capture begins."""
    if not options.start_step and not options.start_inside:
        return 0
    of_step = [each for each in trainer.operations if each.about.step == options.start_step]
    if not options.start_inside:
        return min(each.first_frame for each in of_step)
    reduces = [each for each in of_step if each.about.gradient]
    first, log = reduces[0].first_frame, trainer.fabric.log
    after = reduces[1].first_frame if len(reduces) > 1 else first + 200
    # Longer than what a CTS or an acknowledgement takes: amid an RDMA write.
    inside = [at for at in range(first, min(after, len(log))) if len(log[at].frame) > 160]
    return int(rng.choice(inside[1:] or inside or [first]))


def with_noise(options: Options, rng: np.random.Generator, fabric: Fabric) -> list[Emitted]:
    """The log with other traffic between, in order."""
    others: noise.Noise = []
    port, server = fabric.port(options.mirrored[0], 0), fabric.port(STORAGE_RANK, 0)
    if options.storage:
        others += noise.storage(options, rng, port, server)
    if options.chatter:
        others += noise.chatter(rng, port, server, 12)
    places = np.sort(rng.integers(0, len(fabric.log), len(others)))
    extra = [
        Emitted(fabric.log[at].at_us, src, dst, frame)
        for at, (src, dst, frame) in zip(places, others, strict=True)
    ]
    return sorted([*fabric.log, *extra], key=lambda each: each.at_us)


def impaired(
    options: Options, rng: np.random.Generator, seen: list[Emitted], name: str, truth: Truth
) -> list[Emitted]:
    """Without the frames the mirror lost, with those it made twice."""
    writes = [at for at, each in enumerate(seen) if len(each.frame) > 160]
    lost = {int(at) for at in rng.choice(writes, min(options.lose, len(writes)), replace=False)}
    truth.dropped += [(name, at) for at in sorted(lost)]
    twice = {int(at) for at in rng.integers(0, len(seen), options.duplicates)}
    kept = []
    for at, each in enumerate(seen):
        if at not in lost:
            kept += [each] * (2 if at in twice else 1)
    return kept


def write(path: Path, options: Options, frames: list[Emitted]) -> None:
    """A classic pcap, microseconds."""
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, each in enumerate(frames):
            frame = wrap(options.wrap, each.frame, number)
            seconds, micros = divmod(each.at_us, 1_000_000)
            out.write(struct.pack("<IIII", seconds, micros, len(frame), len(frame)) + frame)
