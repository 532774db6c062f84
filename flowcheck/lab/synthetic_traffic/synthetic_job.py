"""A synthetic data-parallel training job: DDP's frames, with the ground truth. Gradients are
random; every collective is executed hop by hop (ring_collectives.py) and framed as by net_ib
(queue_pair_frames.py). The ground truth is the ranks' data at the end."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from flowcheck.lab.synthetic_traffic import ring_collectives
from flowcheck.lab.synthetic_traffic.queue_pair_frames import Fabric, QueuePair, WireFrame
from flowcheck.lab.synthetic_traffic.ring_collectives import RingSend


@dataclass(frozen=True, kw_only=True)
class SyntheticJob:
    """Specification of a synthetic job. Parameters are in registration order."""

    shapes: tuple[tuple[int, ...], ...] = ((64, 32), (64,), (10, 64), (10,))
    dtype: torch.dtype = torch.float32
    ranks: int = 2
    channels: int = 1
    steps: int = 4
    version: str = "2.19"
    """First NCCL release of the partition rule: 2.19, 2.20, 2.23, 2.26 or 2.29."""
    buckets: tuple[tuple[int, ...], ...] | None = None
    """[bucket] parameter indices from iteration 1 on; None: one bucket in reverse order."""
    pmtu_bytes: int = 1024
    ip_version: int = 6
    adaptive: bool = False
    """Adaptive-routing form: plain writes, each followed by an empty write with immediate."""
    extra_send: bool = False
    """True: NCCL is patched to forward one more result per loop."""
    point_to_point: bool = False
    """True: rank 0 also sends the chunk that its ring sends lack point-to-point (two ranks
    only)."""
    metric_every: int = 0
    """Steps between all-reduces of one float32 metric; 0: none."""
    seed: int = 0


@dataclass
class SyntheticTraffic:
    """Frames of a job, and its ground truth."""

    frames: list[WireFrame] = field(default_factory=list)
    shapes: tuple[tuple[int, ...], ...] = ()
    weights: bytes = b""
    gradients: list[bytes] = field(default_factory=list)
    """[step] mean gradient as bytes, registration order."""
    collectives: list[tuple[str, bytes]] = field(default_factory=list)
    """(kind, result) of each collective in order; of an all-gather, the concatenation over
    ranks."""

    def frames_at_port(self, rank: int, direction: str = "both") -> list[WireFrame]:
        """Frames that a mirror of `rank`'s port copies. direction: "rx", "tx" or "both"."""
        return [
            wire
            for wire in self.frames
            if (direction in ("tx", "both") and wire.sender == rank)
            or (direction in ("rx", "both") and wire.receiver == rank)
        ]


def write_pcap(path: Path, frames: Iterable[WireFrame]) -> int:
    """Writes the frames as a nanosecond pcap file; returns their number."""
    count = 0
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for wire in frames:
            seconds, fraction = divmod(wire.time_ns, 10**9)
            length = len(wire.frame)
            file.write(struct.pack("<IIII", seconds, fraction, length, length) + wire.frame)
            count += 1
    return count


def ll_lines(data: bytes, flag: int) -> bytes:
    """LL lines: 4 data bytes, flag, 4 data bytes, flag (NCCL src/include/device.h)."""
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u4")
    lines = np.full((words.size, 2), flag, "<u4")
    lines[:, 0] = words
    return lines.tobytes()


class SyntheticRun:
    """One execution of a synthetic job."""

    def __init__(self, job: SyntheticJob) -> None:
        self.job = job
        self.random = torch.Generator().manual_seed(job.seed)
        self.fabric = Fabric(
            job.ranks,
            pmtu_bytes=job.pmtu_bytes,
            version=job.version,
            ip_version=job.ip_version,
            adaptive=job.adaptive,
        )
        self.rings: dict[tuple[int, int], QueuePair] = {
            (channel, rank): self.fabric.connect(
                rank, (rank + 1) % job.ranks, channel, simple=False
            )
            for channel in range(job.channels)
            for rank in range(job.ranks)
        }
        self.p2p = self.fabric.connect(0, 1, -1, simple=True) if job.point_to_point else None
        self.truth = SyntheticTraffic(shapes=job.shapes)
        self.sizes = [torch.Size(shape).numel() * job.dtype.itemsize for shape in job.shapes]

    def generate(self) -> SyntheticTraffic:
        """All traffic: DDP's constructor, iteration 0, the bucket rebuild, the later iterations."""
        job = self.job
        self._startup_broadcasts()
        whole = tuple(range(len(job.shapes)))
        later = job.buckets or (tuple(reversed(whole)),)
        for step in range(job.steps):
            if step == 1:
                order = [index for bucket in later for index in bucket]
                self._broadcast(struct.pack(f"<{len(order) + 1}i", *order, len(later)))
                self._broadcast(struct.pack(f"<{len(later)}i", *map(len, later)))
            self._step((whole,) if step == 0 else later)
            if job.metric_every and (step + 1) % job.metric_every == 0:
                self._all_reduce(
                    [struct.pack("<f", float(r)) for r in range(job.ranks)], torch.float32
                )
        self.truth.frames = self.fabric.frames
        return self.truth

    def _startup_broadcasts(self) -> None:
        job = self.job
        count = struct.pack("<q", len(job.shapes))
        self._play(ring_collectives.all_gather([count] * job.ranks))
        self.truth.collectives.append(("all_gather", count * job.ranks))
        values: list[int] = []
        for shape in job.shapes:
            values += [*shape, *torch.empty(shape, device="meta").stride()]
        self._broadcast(struct.pack(f"<{len(values)}q", *values))
        self.truth.weights = b"".join(self._made_up(shape) for shape in job.shapes)
        self._broadcast(self.truth.weights)

    def _made_up(self, shape: tuple[int, ...]) -> bytes:
        values = torch.randn(shape, generator=self.random) * 0.5
        if not self.job.dtype.is_floating_point:
            values = values * 1000
        return values.to(self.job.dtype).reshape(-1).view(torch.uint8).numpy().tobytes()

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        job = self.job
        local = [[self._made_up(shape) for shape in job.shapes] for _ in range(job.ranks)]
        gradient: list[bytes] = [b""] * len(job.shapes)
        for bucket in buckets:
            reduced = self._all_reduce(
                [self._divided(b"".join(own[index] for index in bucket)) for own in local],
                job.dtype,
            )
            at = 0
            for index in bucket:
                gradient[index] = reduced[at : at + self.sizes[index]]
                at += self.sizes[index]
        self.truth.gradients.append(b"".join(gradient))

    def _divided(self, gradient: bytes) -> bytes:
        """DDP divides before it reduces (torch csrc reducer.cpp, mark_variable_ready_dense)."""
        values = torch.frombuffer(bytearray(gradient), dtype=self.job.dtype)
        if self.job.dtype.is_floating_point:
            values = values / self.job.ranks
        return values.view(torch.uint8).numpy().tobytes()

    def _all_reduce(self, tensors: list[bytes], dtype: torch.dtype) -> bytes:
        job = self.job
        result, sends = ring_collectives.all_reduce(
            tensors,
            version=job.version,
            channels=job.channels,
            add=ring_collectives.adder(dtype),
            extra_send=job.extra_send,
        )
        sent = self._play(sends)
        self.truth.collectives.append(("all_reduce", result))
        if self.p2p is not None and len(tensors[0]) > 4:
            # With two ranks and one channel rank 0's first send is the chunk whose sum it lacks.
            first = next(send for send in sent if send.sender == 0)
            self.fabric.send(self.p2p, result[len(result) - len(first.data) :])
        return result

    def _broadcast(self, data: bytes) -> None:
        job = self.job
        self._play(ring_collectives.broadcast(data, job.ranks, job.channels, job.version))
        self.truth.collectives.append(("broadcast", data))

    def _play(self, sends: Iterable[RingSend]) -> list[RingSend]:
        played = list(sends)
        for send in played:
            connection = self.rings[send.channel, send.sender]
            self.fabric.send(connection, ll_lines(send.data, connection.sent + 1))
        return played


def make_traffic(job: SyntheticJob) -> SyntheticTraffic:
    """Frames and ground truth of a job."""
    return SyntheticRun(job).generate()
