"""Runs a job and writes what its mirror points saw."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from support.netib import noise, packets
from support.netib.fabric import Emitted, Fabric
from support.netib.options import Options, Truth
from support.netib.trainer import Trainer
from support.netib.written import write

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
    end = int(len(fabric.log) * options.manners.until)
    for operation in trainer.operations:
        operation.about.complete = start <= operation.first_frame and operation.last_frame < end
    frames = with_noise(options, rng, fabric)
    begin_us = fabric.log[start].at_us if start else 0
    end_us = fabric.log[end - 1].at_us
    points = {
        f"rank{rank}-{rail}.pcap": [fabric.port(rank, rail)]
        for rank in options.mirrored
        for rail in range(options.ports)
    }
    if options.manners.merged:
        points = {"all.pcap": [port for ports in points.values() for port in ports]}
    files = []
    for name, ports in points.items():
        seen = [
            each
            for each in frames
            if begin_us <= each.at_us <= end_us
            and (
                (each.src in ports and options.directions != "rx")
                or (each.dst in ports and options.directions != "tx")
            )
        ]
        path = folder / name
        write(path, options, impaired(options, rng, seen, name, truth))
        files.append(path)
    return Generated(files, truth)


def first_captured(options: Options, trainer: Trainer, rng: np.random.Generator) -> int:
    """Index in the log where the capture begins."""
    if not options.start_step and not options.start_inside:
        return int(options.manners.first * len(trainer.fabric.log))
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
    if options.puts:
        others += noise.puts(options, rng, port, server)
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
    grants = [at for at, each in enumerate(seen) if packets.opcode_of(each.frame) == packets.GRANT]
    lost |= {grants[number] for number in options.grants_lost}
    twice = {int(at) for at in rng.integers(0, len(seen), options.duplicates)}
    kept = []
    for at, each in enumerate(seen):
        if at not in lost:
            kept += [each] * (2 if at in twice else 1)
    return kept
