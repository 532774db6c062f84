"""Made-up jobs, and frames that a mirror lost or mixed up: what may never come out complete."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticRun,
    SyntheticTraffic,
    write_pcap,
)
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

VERSIONS = ("2.19", "2.20", "2.23", "2.26", "2.29")
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32)
DAMAGES = (
    "drop few",
    "drop many",
    "burst",
    "bursts",
    "head",
    "tail",
    "middle",
    "no cts",
    "reorder",
    "direction",
    "message",
    "ends",
    "connection",
    "last",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One job, where it is mirrored, and what is done to the frames of each mirror."""

    seed: int
    job: SyntheticJob
    twice: int
    """After every so many steps a bucket's all-reduce of other bytes is made; 0: never."""
    mirrors: tuple[tuple[int, str], ...]
    damages: tuple[tuple[str, ...], ...]


class Restless(SyntheticRun):
    """A trainer that now and then reduces something else of exactly the gradient's size."""

    def __init__(self, job: SyntheticJob, twice: int) -> None:
        super().__init__(job)
        self._twice, self._steps = twice, 0

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        super()._step(buckets)
        self._steps += 1
        if self._twice and self._steps % self._twice == 0:
            shapes = [self.job.shapes[i] for i in buckets[self._steps % len(buckets)]]
            own = [b"".join(map(self._made_up, shapes)) for _ in range(self.job.ranks)]
            self._all_reduce(list(map(self._divided, own)), self.job.dtype)


def made_up(seed: int) -> Case:
    """Everything drawn by `seed`."""
    dice = random.Random(seed)
    ranks = dice.choice((2, 2, 2, 3, 4, 5))
    wide = dice.choice((5, 40, 90))
    shapes = tuple(
        tuple(dice.randint(1, wide) for _ in range(dice.choice((1, 2, 2))))
        for _ in range(dice.randint(1, 5))
    )
    order = list(range(len(shapes)))
    dice.shuffle(order)
    at = dice.randint(0, len(order) - 1)
    job = SyntheticJob(
        shapes=shapes,
        dtype=dice.choice(DTYPES),
        ranks=ranks,
        channels=dice.choice((1, 1, 2, 3)),
        steps=dice.randint(2, 6),
        version=dice.choice(VERSIONS),
        buckets=tuple(tuple(part) for part in (order[:at], order[at:]) if part),
        adaptive=dice.random() < 0.3,
        pmtu_bytes=dice.choice((1024, 4096)),
        ip_version=dice.choice((4, 6)),
        metric_every=dice.choice((0, 0, 1, 2)),
        seed=seed,
    )
    points = dice.sample(range(ranks), dice.choice((1, 1, 1, min(2, ranks), ranks)))
    mirrors = tuple((p, dice.choice(("both", "both", "both", "tx", "rx"))) for p in points)
    damages = tuple(tuple(dice.sample(DAMAGES, dice.choice((0, 1, 1, 1, 2)))) for _ in mirrors)
    return Case(seed, job, dice.choice((0, 0, 0, 0, 1, 2)), mirrors, damages)


def traffic_of(case: Case) -> SyntheticTraffic:
    """The whole job's frames and truth."""
    return Restless(case.job, case.twice).generate()


def damaged(frames: list[WireFrame], how: str, dice: random.Random) -> list[WireFrame]:
    """What is left of `frames`, in the order they are written down."""
    count = len(frames)
    if how in ("drop few", "drop many"):
        rate = dice.choice((0.002, 0.01)) if how == "drop few" else dice.choice((0.05, 0.3))
        return [f for f in frames if dice.random() >= rate]
    if how in ("burst", "bursts", "middle"):
        share = 0.3 if how == "middle" else 0.04
        for _ in range(3 if how == "bursts" else 1):
            length = dice.randint(1, max(1, int(share * count)))
            start = dice.randrange(max(1, len(frames) - length))
            frames = frames[:start] + frames[start + length :]
        return frames
    if how == "head":
        return frames[dice.randrange(1, max(2, count)) :]
    if how == "tail":
        return frames[: dice.randrange(1, max(2, count))]
    if how == "last":
        return frames[: -dice.randint(1, 30)]
    if how == "no cts":
        return [f for f in frames if f.kind == "data"]
    if how == "reorder":
        far = dice.choice((2, 8, 30))
        moved = sorted(range(count), key=lambda i: i + dice.uniform(0, far))
        return [frames[i] for i in moved]
    return _without(frames, how, dice)


def _without(frames: list[WireFrame], how: str, dice: random.Random) -> list[WireFrame]:
    """Lose what belongs together: a direction, a connection, whole messages or their ends."""
    if how == "direction":
        lost = dice.choice(sorted({f.sender for f in frames}) or [0])
        return [f for f in frames if f.sender != lost]
    if how == "connection":
        all_of = sorted({(f.sender, f.channel) for f in frames if f.kind == "data"})
        gone = dice.choice(all_of) if all_of else None
        return [f for f in frames if f.kind != "data" or (f.sender, f.channel) != gone]
    names = sorted({_message(f) for f in frames if f.kind == "data"})
    picked = set(dice.sample(names, min(len(names), dice.randint(1, 5))))
    if how == "message":
        return [f for f in frames if f.kind != "data" or _message(f) not in picked]
    places: dict[tuple[int, int, int, int], list[int]] = {}
    for i, frame in enumerate(frames):
        if frame.kind == "data":
            places.setdefault(_message(frame), []).append(i)
    ends = {i for name in picked for i in (places[name][0], places[name][-1])}
    return [f for i, f in enumerate(frames) if i not in ends]


def _message(frame: WireFrame) -> tuple[int, int, int, int]:
    return frame.sender, frame.receiver, frame.channel, frame.message


def read(case: Case, traffic: SyntheticTraffic, folder: Path) -> Reading:
    """What is learned from the damaged frames of all mirrors."""
    dice = random.Random(case.seed + 1)
    paths = []
    for number, ((rank, direction), hows) in enumerate(
        zip(case.mirrors, case.damages, strict=True)
    ):
        frames = traffic.frames_at_port(rank, direction)
        for how in hows:
            frames = damaged(frames, how, dice)
        paths.append(folder / f"mirror{number}.pcap")
        write_pcap(paths[-1], frames)
    tape = read_capture_files(paths)
    return read_stream(tape.flows, tape.messages)


def wrong(reading: Reading, traffic: SyntheticTraffic) -> Iterator[str]:
    """What is called complete and is not what the ranks hold, or comes at another's place. Edges
    of which nothing tells that they are one ring are read as communicators of their own."""
    truth = [
        hashlib.sha256(data).hexdigest()
        for kind, data in traffic.collectives
        if kind == "all_reduce"
    ]
    places: dict[int, int] = {}
    for c in reading.collectives:
        if c.kind != "all_reduce" or c.sha256 is None:
            continue
        at = places.get(c.communicator, 0)
        if c.sha256 not in truth:
            yield f"#{c.index}: {c.bytes} bytes that nobody has, assumed {c.assumed}"
        elif c.sha256 not in truth[at:]:
            yield f"#{c.index}: {c.bytes} bytes of an earlier all-reduce, assumed {c.assumed}"
        else:
            places[c.communicator] = truth.index(c.sha256, at) + 1
    weights = reading.weights
    if weights is not None and weights.sha256 not in (
        None,
        hashlib.sha256(traffic.weights).hexdigest(),
    ):
        yield f"weights of {weights.bytes} bytes that nobody has"
