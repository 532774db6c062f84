"""Made-up jobs for the learner, and what it may say of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from flowcheck.findings.catalog.collective_evidence import END_OPEN
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, SyntheticTraffic, write_pcap
from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn import Collective, Reading, read_stream

RULES = {
    "2.19": NcclEra.V2_19,
    "2.20": NcclEra.V2_20,
    "2.23": NcclEra.V2_23,
    "2.26": NcclEra.V2_26,
    "2.29": NcclEra.V2_29,
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def permuted(seed: int) -> tuple[SyntheticJob, int]:
    """(a job, the rank whose port is mirrored), nothing of it fixed."""
    dice = random.Random(seed)
    shapes = tuple(
        tuple(dice.randint(1, dice.choice((5, 40, 90))) for _ in range(dice.randint(1, 3)))
        for _ in range(dice.randint(1, 6))
    )
    order = list(range(len(shapes)))
    dice.shuffle(order)
    cut = dice.randint(0, len(order) - 1)
    buckets = tuple(tuple(part) for part in (order[:cut], order[cut:]) if part)
    ranks = 2 + seed % 7
    job = SyntheticJob(
        shapes=shapes,
        dtype=dice.choice(DTYPES),
        ranks=ranks,
        channels=1 + seed % 4,
        steps=3,
        version=list(RULES)[seed % 5],
        buckets=buckets,
        pmtu_bytes=dice.choice((1024, 4096)),
        ip_version=dice.choice((4, 6)),
        adaptive=seed % 3 == 0,
        extra_send=seed % 5 == 1,
        seed=seed,
    )
    return job, dice.randrange(ranks)


def read(
    traffic: SyntheticTraffic, rank: int, direction: str, folder: Path
) -> tuple[Reading, CaptureContents]:
    """What one mirrored port tells."""
    path = folder / "job.pcap"
    write_pcap(path, traffic.frames_at_port(rank, direction))
    tape = read_capture_files([path])
    return read_stream(tape.flows, tape.messages), tape


def agrees(collective: Collective, result: bytes) -> bool:
    """No byte called covered differs from what the ranks held."""
    seen = np.ones(collective.bytes, np.bool_)
    for start, stop in collective.missing:
        seen[start:stop] = False
    truth = np.frombuffer(result, np.uint8)
    return collective.bytes == len(result) and bool((collective.result[seen] == truth[seen]).all())


def lacks_its_end(collective: Collective) -> bool:
    """All but the last LL line is there: how much of that one is meant, nothing tells."""
    line = (collective.bytes - 1) // 8 * 8
    told = any(one.is_any_of(END_OPEN) for one in collective.assumed)
    return told and collective.missing == ((line, collective.bytes),)
