"""What PyTorch DDP puts on a communicator, in order."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from support.netib import habits, parted, pat
from support.netib.broadcasts import listed
from support.netib.fabric import Fabric, pair_name
from support.netib.options import Options, Truth
from support.netib.partition import up
from support.netib.reduction import (
    Operation,
    all_gather,
    all_reduce,
    broadcast,
    octets,
    reduce_scatter,
    transfer,
)


def strides(shape: tuple[int, ...]) -> list[int]:
    return [prod(shape[at + 1 :]) for at in range(len(shape))]


def bucketed(options: Options, order: list[int], each: int) -> list[list[int]]:
    """Parameters in buckets closed after the one that reaches the cap."""
    buckets: list[list[int]] = []
    open_bucket: list[int] = []
    size = 0
    for parameter in order:
        open_bucket.append(parameter)
        size += prod(options.shapes[parameter]) * each
        if size >= options.caps_bytes[min(1, len(buckets))]:
            buckets.append(open_bucket)
            open_bucket, size = [], 0
    return [*buckets, open_bucket] if open_bucket else buckets


@dataclass
class Trainer:
    """One job: its collectives in order, executed on the fabric."""

    options: Options
    rng: np.random.Generator
    fabric: Fabric
    truth: Truth
    operations: list[Operation] = field(default_factory=list)
    step: int = -1

    @property
    def dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.options.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def random(self, count: int, scale: float) -> torch.Tensor:
        drawn = self.rng.standard_normal(count) * scale
        values = self.options.manners.values if self.step >= 0 else ""
        if values == "sparse":
            drawn *= self.rng.random(count) < 0.02
        if values == "whole":
            drawn = np.round(drawn / scale * 4)
        return torch.from_numpy(drawn).to(self.dtype)

    def run(
        self,
        *operations: Operation,
        background: tuple[Operation, ...] = (),
        gap_us: int = 200,
    ) -> None:
        for operation in [*operations, *background]:
            operation.about.step = self.step
            self.operations.append(operation)
            self.truth.collectives.append(operation.about)
        self.fabric.wait(gap_us)
        self.fabric.run(list(operations), list(background))

    def train(self) -> None:
        options = self.options
        if options.sharded:
            self.train_sharded()
            return
        everything = list(range(len(options.shapes)))
        if options.parted:
            parted.train(self)
            return
        if options.dtypes:
            self.train_apart(everything)
            return
        habits.before(self)
        for _ in range(options.pairs_first if options.pipeline_bytes else 0):
            self.run(background=self.transfers(1, 0), gap_us=500)
        self.start()
        each = self.dtype.itemsize
        buckets = [everything]
        if options.find_unused or not options.manners.rebuilt:
            buckets = bucketed(options, everything, each)[::-1]
        for self.step in range(options.steps):
            self.fabric.wait(5000)
            due = self.step == self.plan_step and options.manners.rebuilt
            if due and options.habit != "each alone":
                buckets = self.rebuild()
            self.forward()
            if not habits.instead(self, buckets):
                self.backward(buckets)
            habits.behind(self)
        self.truth.buckets = buckets

    def train_sharded(self) -> None:
        """The last layer stays gathered between forward and backward."""
        options = self.options
        sizes = [up(prod(shape), 8 * options.ranks) for shape in options.shapes]
        layers = range(len(sizes))
        for self.step in range(options.steps):
            self.fabric.wait(5000)
            blocks = [octets(self.random(size, 0.1)) for size in sizes]
            order = [*layers, *layers[-2::-1]]
            for place, layer in enumerate(order):
                each = len(blocks[layer]) // options.ranks
                parts = [blocks[layer][n * each : (n + 1) * each] for n in range(options.ranks)]
                if options.pat:
                    self.run(*pat.gathered(options, parts), gap_us=300)
                else:
                    self.run(all_gather(options, parts), gap_us=300)
                if place >= layers[-1]:
                    drawn = [self.random(sizes[layer], 1) for _ in range(options.ranks)]
                    self.run(reduce_scatter(options, drawn), gap_us=300)

    def train_apart(self, everything: list[int]) -> None:
        """Parameters of several dtypes: broadcasts and buckets of each on their own."""
        of = self.options.dtypes
        alone = [[i for i in everything if of[i] == dtype] for dtype in dict.fromkeys(of)]
        self.start_parameters()
        state = [self.random(prod(s), 0.1).to(getattr(torch, d)) for s, d in self.kinds()]
        self.truth.weights = b"".join(map(octets, state))
        for group in alone:
            own = b"".join(octets(state[index]) for index in group)
            extra = (
                octets(self.random(self.options.buffers, 1)) if of[group[0]] == "float32" else b""
            )
            self.run(broadcast(self.options, own + extra))
        self.run_counters()
        buckets = alone[::-1]
        if self.options.find_unused:
            capped = [bucketed(self.options, group, self.size_of(group[0])) for group in alone]
            buckets = sorted((bucket for some in capped for bucket in some), reverse=True)
        for step in range(self.options.steps):
            self.step = step
            self.fabric.wait(5000)
            if step == self.plan_step:
                buckets = self.planned([list(reversed(group)) for group in alone])
            self.forward()
            self.backward(buckets)
        self.truth.buckets = buckets

    def size_of(self, parameter: int) -> int:
        """Bytes of an element."""
        size = getattr(torch, self.options.dtypes[parameter]).itemsize
        assert isinstance(size, int)
        return size

    @property
    def plan_step(self) -> int:
        """Before which rank 0 tells the order in which gradients were ready; -1: before none."""
        return -1 if self.options.find_unused else 1 + self.options.static_graph

    def kinds(self) -> list[tuple[tuple[int, ...], str]]:
        options = self.options
        return list(zip(options.shapes, options.dtypes, strict=True))

    def planned(self, groups: list[list[int]]) -> list[list[int]]:
        """Each dtype's parameters in buckets of their own, told to all by rank 0."""
        buckets: list[list[int]] = []
        for group in groups:
            buckets += bucketed(self.options, group, self.size_of(group[0]))
        self.tell(buckets)
        return buckets

    def tell(self, buckets: list[list[int]]) -> None:
        order = [index for bucket in buckets for index in bucket]
        indices = struct.pack(f"<{len(order) + 1}i", *order, len(buckets))
        sizes = struct.pack(f"<{len(buckets)}i", *map(len, buckets))
        self.run(broadcast(self.options, indices))
        self.run(broadcast(self.options, sizes), gap_us=50)

    def start_parameters(self) -> None:
        """What DDP's constructor checks of all ranks."""
        options = self.options
        if options.manners.startup != "ddp":
            return
        parameters = struct.pack("<q", len(options.shapes))
        counts = [parameters] * options.ranks
        self.run(*listed(options, counts))
        facts = [number for shape in options.shapes for number in (*shape, *strides(shape))]
        self.run(broadcast(options, struct.pack(f"<{len(facts)}q", *facts)))

    def start(self) -> None:
        """The checks of DDP's constructor, then the state of rank 0."""
        options = self.options
        self.start_parameters()
        weights = self.random(sum(prod(shape) for shape in options.shapes), 0.1)
        self.truth.weights = octets(weights)
        if not options.manners.startup:
            return
        for piece in coalesced(self.with_frozen(weights)):
            self.run(broadcast(options, piece))
        self.run_counters()

    def with_frozen(self, weights: torch.Tensor) -> list[bytes]:
        """All tensors that are broadcast in the parameters' type: frozen ones in their places, and
        buffers."""
        options = self.options
        own = list(weights.split([prod(shape) for shape in options.shapes]))
        told, held = [], []
        for place in range(len(own) + 1):
            frozen = [f for f in options.frozen if f[0] == place]
            held += (apart := [octets(self.random(prod(size), 0.1)) for _, *size in frozen])
            told += apart + [octets(one) for one in own[place : place + 1]]
        buffers = octets(self.random(options.buffers, 1))
        self.truth.beside = b"".join(held) + buffers
        return [*told, buffers]

    def run_counters(self) -> None:
        if self.options.counters:
            count = max(0, self.step + 1)
            values = struct.pack("<q", count) * self.options.counters
            self.run(broadcast(self.options, values), gap_us=30)

    def rebuild(self) -> list[list[int]]:
        """The order gradients were ready in, told to all by rank 0."""
        order = list(range(len(self.options.shapes)))[::-1]
        for at in range(0, len(order) - 1, 2):
            if self.rng.random() < 0.5:
                order[at], order[at + 1] = order[at + 1], order[at]
        buckets = bucketed(self.options, order, self.dtype.itemsize)
        self.tell(buckets)
        return buckets

    def forward(self) -> None:
        options = self.options
        if options.buffers:
            self.run(broadcast(options, octets(self.random(options.buffers, 1))))
            self.run_counters()
        if options.pipeline_bytes:
            self.run(background=self.transfers(1, 0), gap_us=500)
        for _ in range(2 * options.tensor_layers):
            self.run(self.shared(), gap_us=100)

    def shared(self) -> Operation:
        """The activations of a layer that two ranks share."""
        options = replace(self.options, ranks=2, gpus=1, orders=0, mirrored=(0,), tree_below=0)
        made = all_reduce(options, [self.random(16 * options.shapes[0][0], 1) for _ in range(2)])
        made.about.communicator = "tp"
        return made

    def transfers(self, *senders: int) -> tuple[Operation, ...]:
        """The sends of a pass: of the mirrored rank (0) and its neighbour (1), in this order, or of
        all pairs, as large as each other or, of every second, half as large."""
        options = self.options
        if not options.pairs:
            return tuple(transfer(self.rng.bytes(options.pipeline_bytes), s) for s in senders)
        return tuple(
            transfer(
                self.rng.bytes(options.pipeline_bytes >> number % 2),
                int(source > target),
                pair_name(source, target),
            )
            for number, (source, target) in enumerate(options.pairs)
            if {source, target} & set(options.mirrored)
        )

    def backward(self, buckets: list[list[int]]) -> None:
        options = self.options
        reduces = []
        for bucket in buckets:
            elements = sum(prod(options.shapes[parameter]) for parameter in bucket)
            if options.manners.values == "same":
                self.rng = np.random.default_rng(options.seed)
            parts = [self.random(elements, 1 / options.ranks) for _ in range(options.ranks)]
            if options.dtypes:
                parts = [part.to(getattr(torch, options.dtypes[bucket[0]])) for part in parts]
            if options.compress:
                parts = [part.to(getattr(torch, options.compress)) for part in parts]
            reduces.append(all_reduce(options, parts))
            reduces[-1].about.gradient = True
        if options.find_unused or (options.static_graph and not self.step):
            used = torch.ones(len(options.shapes), dtype=torch.int32)
            map_of_used = all_reduce(options, [used] * options.ranks)
            # A static graph's comes once, before any gradient.
            reduces.insert(0 if options.static_graph else len(reduces), map_of_used)
        background: tuple[Operation, ...] = ()
        if options.pipeline_bytes:
            background = self.transfers(0, 1)
        background += tuple(self.shared() for _ in range(2 * options.tensor_layers))
        # Half of the jobs launch all buckets at once, the others one after the other.
        if self.rng.random() < 0.5:
            self.run(*reduces, background=background, gap_us=2000)
        else:
            for at, reduce in enumerate(reduces):
                self.run(reduce, background=() if at else background, gap_us=300)
        if options.metric_every and (self.step + 1) % options.metric_every == 0:
            values = [torch.rand(2) for _ in range(options.ranks)]
            self.run(all_reduce(options, values), gap_us=1500)
        if options.metrics_group:
            # As large as a bucket: only whose connections they are tells the two apart.
            options = replace(options, tree_below=1 << 30 if options.metric_trees else 0)
            count = options.metric_trees or elements
            metric = all_reduce(options, [self.random(count, 1) for _ in range(options.ranks)])
            metric.about.communicator = "metrics"
            self.run(metric, gap_us=800)


def coalesced(tensors: list[bytes]) -> list[bytes]:
    """Broadcasts of them as torch cuts them (torch/csrc/distributed/c10d/reducer.cpp,
    broadcast_coalesced): DDP asks for pieces of 250 MiB (nn/parallel/distributed.py,
    broadcast_bucket_size)."""
    filled = [one for one in tensors if one]
    sizes = [torch.empty(len(one), dtype=torch.uint8, device="meta") for one in filled]
    pieces, _ = dist._compute_bucket_assignment_by_size(sizes, [250 << 20])
    return [b"".join(filled[index] for index in piece) for piece in pieces]
