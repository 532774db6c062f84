"""A DDP job of any length as a mirror port shows it, with its truth.

Start-up and the first iterations are the generator's (tests/support/netib). Every later one is the
last of these once more, as NCCL would send it then (repeat.c), with gradients twice as large each
time.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from cffi import FFI
from numpy.typing import NDArray
from support.netib.fabric import Fabric
from support.netib.fifo import fifo
from support.netib.options import LL128, SIMPLE, Options, Truth
from support.netib.packets import Port
from support.netib.partition import up
from support.netib.reduction import Operation
from support.netib.trainer import Trainer
from support.netib.transport import BASE, STEP_STRIDE, Connection
from support.netib.written import SNAP_BYTES

from bench.measure import HERE, address
from flowcheck._core import ffi as core_ffi
from flowcheck._core import lib

FILE_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, SNAP_BYTES, 1)
GENERATED = 2
"""Iterations: the last one is like all later ones, for the first one is a single bucket."""
WINDOW = 8
"""Buffers of a connection."""
CONTENT = {SIMPLE: 1, LL128: 2}
CLEAR_TO_SEND = 3
NUMBER_AT = 32
"""Byte of a clear-to-send's number in its entry, of VERSION (support/netib/fifo.py)."""
VERSION = (2, 23)
RULES = """
struct bench_slots { uint64_t base, stride; uint32_t slots, shift; };
struct bench_rule {
    uint8_t to[4]; uint32_t queue_pair; uint32_t write_psns, ack_psns, ack_messages;
    uint32_t content; struct bench_slots written, granted; uint64_t steps;
    uint32_t number_at; uint32_t numbers;
};
int64_t bench_age(void *records, uint64_t bytes, const struct bench_rule *rules, uint32_t count,
                  uint32_t times, uint32_t doublings, uint64_t period_us, void *icrc);
"""


def layers(width: int, number: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of a GPT's blocks: 12 x width^2 parameters each, and small ones."""
    block = ((3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width),
             (4 * width,), (width, 4 * width), (width,), (width,), (width,))  # fmt: skip
    return block * number


def job_options(shapes: tuple[tuple[int, ...], ...], protocol: str, channels: int = 4) -> Options:
    """Four ranks, jumbo frames, both directions of rank 0's port."""
    return Options(
        ranks=4,
        channels=channels,
        version=VERSION,
        protocol=protocol,
        shapes=shapes,
        steps=GENERATED,
        mtu=4096,
    )


@dataclass
class JobStream:
    """A capture file and what is true of its job."""

    path: Path
    options: Options
    truth: Truth
    starts: list[int] = field(default_factory=list)
    """First frame of each iteration; behind them the number of all frames."""
    bytes: int = 0
    """Of the file."""

    @property
    def iterations(self) -> int:
        return len(self.starts) - 1

    ends: list[int] = field(default_factory=list)
    """Bytes of the file before the first iteration, and behind each one."""

    @property
    def iteration_bytes(self) -> int:
        """Of the last iteration."""
        return self.ends[-1] - self.ends[-2]

    def iteration_at(self, part: float) -> float:
        """Iterations of which that part of the file consists, from 0; below 0: start-up."""
        at = part * self.bytes
        return float(np.interp(at, [0, *self.ends], range(-1, len(self.ends))))

    def weights(self) -> NDArray[np.float32]:
        """Initial ones, in registration order."""
        return np.frombuffer(self.truth.weights, "<f4")

    def gradients(self) -> Iterator[NDArray[np.float32]]:
        """[iteration] what is reduced, in registration order."""
        yield self._gradient(0, [list(range(len(self.options.shapes)))])
        for number in range(1, self.iterations):
            generated = min(number, self.options.steps - 1)
            template = self._gradient(generated, self.truth.buckets)
            yield template * np.float32(2.0 ** (number - generated))

    def _gradient(self, step: int, buckets: list[list[int]]) -> NDArray[np.float32]:
        sizes = [prod(shape) for shape in self.options.shapes]
        starts = np.cumsum([0, *sizes])
        flat = np.empty(starts[-1], np.float32)
        reduced = [each for each in self.truth.gradients if each.step == step]
        for bucket, told in zip(buckets, reduced, strict=True):
            values, at = np.frombuffer(told.result, "<f4"), 0
            for index in bucket:
                flat[starts[index] : starts[index + 1]] = values[at : at + sizes[index]]
                at += sizes[index]
        return flat


class FileFabric(Fabric):
    """Writes what passes a port to a file as it passes, and keeps nothing."""

    def __init__(self, options: Options, rng: np.random.Generator, out: BinaryIO) -> None:
        super().__init__(options, rng)
        self.out, self.frames = out, 0
        out.write(FILE_HEADER)

    def emit(self, src: Port, dst: Port, frame: bytes, operation: Operation | None) -> None:
        self.clock_us += 1
        self.frames += 1
        seconds, us = divmod(self.clock_us, 1_000_000)
        self.out.write(struct.pack("<IIII", seconds, us, len(frame), len(frame)) + frame)


class StreamTrainer(Trainer):
    """Notes where iterations begin, and how far each connection gets in the last one."""

    def __init__(
        self, options: Options, rng: np.random.Generator, fabric: FileFabric, truth: Truth
    ) -> None:
        super().__init__(options, rng, fabric, truth)
        self.file = fabric
        self.begins: list[int] = []
        self.places: list[int] = []
        self.before: dict[tuple[str, int, int], Counted] = {}
        self.template_at = 0
        """Byte of the file where the last iteration's gradients begin."""
        self.period_us = 0

    def run(self, *operations: Operation, **more: Any) -> None:
        super().run(*operations, **more)
        for operation in operations:  # gigabytes
            operation.loads = {}
        self.operations.clear()

    def backward(self, buckets: list[list[int]]) -> None:
        self.template_at, began_us = self.file.out.tell(), self.fabric.clock_us
        self.begins.append(self.file.frames)
        self.places.append(self.template_at)
        self.before = {key: counted(each) for key, each in self.fabric.connections.items()}
        super().backward(buckets)
        self.period_us = self.fabric.clock_us - began_us + 5000


@dataclass(frozen=True)
class Counted:
    """How far a connection is."""

    step: int
    granted: int
    psn: int
    messages: int
    cts_psn: int


def counted(each: Connection) -> Counted:
    pair = each.pairs[0]
    return Counted(each.step, each.granted, pair.psn, pair.messages, pair.cts_psn)


def make_stream(
    options: Options, path: Path, iterations: int, *, doubling: bool = True
) -> JobStream:
    """Writes the capture file of a job of so many iterations, options.steps of which are generated.
    doubling: gradients are twice as large in each later one; False: the same."""
    assert options.version == VERSION and options.qps == 1 and options.steps >= GENERATED
    rng = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)
    truth = Truth(options)
    with path.open("wb") as out:
        fabric = FileFabric(options, rng, out)
        trainer = StreamTrainer(options, rng, fabric, truth)
        trainer.train()
        generated = out.tell()
    begins, places = [*trainer.begins, fabric.frames], [*trainer.places, generated]
    stream = JobStream(path, options, truth, begins, generated, places)
    _repeat(stream, trainer, iterations - options.steps, doubling=doubling)
    return stream


def _repeat(stream: JobStream, trainer: StreamTrainer, times: int, *, doubling: bool) -> None:
    """Appends the last iteration so many times, each as it comes then."""
    build, library = compiled()
    rules = build.new("struct bench_rule[]", list(_rules(trainer)))
    icrc = build.cast("void *", address(core_ffi.addressof(lib, "fc_icrc")))
    size, first = stream.bytes - trainer.template_at, stream.bytes
    each = stream.starts[-1] - stream.starts[-2]
    with stream.path.open("r+b") as file:
        file.truncate(first + times * size)
        if not times:
            return
        with mmap.mmap(file.fileno(), 0) as memory:
            template = memory[trainer.template_at : first]
            for number in range(1, times + 1):
                at = first + (number - 1) * size
                memory[at : at + size] = template
                doublings = number if doubling else 0
                with build.from_buffer("uint8_t[]", memory, require_writable=True) as place:
                    aged = library.bench_age(
                        place + at, size, rules, len(rules), number, doublings, trainer.period_us,
                        icrc,
                    )  # fmt: skip
                assert aged == each, aged
                stream.starts.append(stream.starts[-1] + each)
                stream.ends.append(at + size)
    stream.bytes = first + times * size


def _rules(trainer: StreamTrainer) -> Iterator[dict[str, Any]]:
    """Of both directions of every connection."""
    protocol = trainer.options.protocol
    slots, stride = fifo(VERSION)
    for key, each in trainer.fabric.connections.items():
        was, now, pair = trainer.before[key], counted(each), each.pairs[0]
        steps = now.step - was.step
        if protocol == SIMPLE:  # a collective begins at a multiple of four
            steps = up(now.step, 4) - up(was.step, 4)
        messages, granted = now.messages - was.messages, now.granted - was.granted
        buffers = {
            "base": each.block + BASE[protocol],
            "stride": STEP_STRIDE[protocol],
            "slots": WINDOW,
            "shift": steps % WINDOW,
        }
        entries = {"base": each.fifo, "stride": stride, "slots": slots, "shift": granted % slots}
        data, clears = now.psn - was.psn, now.cts_psn - was.cts_psn
        yield {
            "to": list(each.dst.ip),
            "queue_pair": pair.receiver_qpn,
            "write_psns": data,
            "ack_psns": clears,
            "ack_messages": clears,
            "content": CONTENT[protocol],
            "written": buffers,
            "granted": buffers,
            "steps": steps,
        }
        yield {
            "to": list(each.src.ip),
            "queue_pair": pair.sender_qpn,
            "write_psns": clears,
            "ack_psns": data,
            "ack_messages": messages,
            "content": CLEAR_TO_SEND,
            "written": entries,
            "granted": buffers,
            "number_at": NUMBER_AT,
            "numbers": granted,
        }


_COMPILED: list[tuple[Any, Any]] = []


def compiled() -> tuple[Any, Any]:
    """repeat.c, once a process."""
    if not _COMPILED:
        import tempfile

        build = FFI()
        build.cdef(RULES)
        with tempfile.TemporaryDirectory(prefix="flowcheck-bench-") as scratch:
            target = Path(scratch) / "repeat.so"
            words = ["cc", "-O3", "-std=gnu11", "-shared", "-fPIC", "-o", target, HERE / "repeat.c"]
            subprocess.run(words, check=True, timeout=60)
            _COMPILED.append((build, build.dlopen(str(target))))
    return _COMPILED[0]
