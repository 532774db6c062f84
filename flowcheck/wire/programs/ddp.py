"""What DistributedDataParallel sends: its start-up, iteration 0, the bucket plan, iterations.

All parameters are of one dtype, and every rank reduces all of them in every iteration. Between
these it broadcasts buffers before a forward, if the module has any. Other options and what a
trainer sends beside are no part of it yet: whoever asks gets no answer then.

Sources: torch/csrc/distributed/c10d/reducer.cpp (sync_bucket_indices, rebuild_buckets),
torch/nn/parallel/distributed.py (_pre_forward, _sync_buffers, _ddp_init_helper).
"""

from __future__ import annotations

from collections.abc import Generator

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.ddp_startup.ddp_messages import Buckets
from flowcheck.wire.programs.ddp_start import Model, start_up, weights
from flowcheck.wire.programs.expectation import Came, Content, Expect, Program

ORDER, SIZES = "bucket order", "bucket sizes"
BUCKET, BUFFERS = "gradient bucket", "buffers"
COMPRESSED_BYTES = 2
"""Of an element in a bucket under torch's fp16_compress_hook and bf16_compress_hook."""
INDEX_BYTES = 4
"""Of a number in the plan."""


def ddp() -> Program:
    """A job from its start-up on."""
    model, left = yield from start_up()
    if not model.element_bytes:
        return
    every = tuple(range(model.parameters))
    pieces = _pieces_left(model) if left else []
    for size in pieces:
        yield (weights(size),)
    # Iteration 0 reduces everything at once, behind what is broadcast of buffers.
    each = dict.fromkeys((model.element_bytes, COMPRESSED_BYTES))
    whole = tuple(_bucket(model, every, size) for size in each)
    came = yield (*whole, weights(0))
    while came.expect.meaning != BUCKET:
        came = yield (*whole, weights(0))
    reduced = came.expect.type_bytes
    buckets = yield from _plan(model)
    while True:
        for number, bucket in enumerate(buckets):
            due = _bucket(model, bucket, reduced)
            came = yield (due, _buffers()) if not number else (due,)
            while came.expect.meaning == BUFFERS:
                came = yield (due, _buffers())


def _pieces_left(model: Model) -> list[int]:
    """Bytes of the broadcasts of weights behind the first one."""
    sizes = [count * model.element_bytes for count in model.shapes.counts]
    return [size for _, size in ddp_messages.weight_broadcasts(sizes)[1:]]


def _bucket(model: Model, parameters: tuple[int, ...], element_bytes: int) -> Expect:
    return Expect(
        kind=CollectiveKind.ALL_REDUCE,
        meaning=BUCKET,
        work_bytes=model.bytes_of(parameters, element_bytes),
        type_bytes=element_bytes,
    )


def _buffers() -> Expect:
    return Expect(kind=CollectiveKind.BROADCAST, meaning=BUFFERS)


def _plan(model: Model) -> Generator[tuple[Expect, ...], Came, Buckets]:
    """The buckets of every later iteration, which rank 0 tells at the second forward."""
    count = model.parameters

    def order(content: Content) -> tuple[tuple[int, ...], int] | None:
        return ddp_messages.parse_bucket_indices(content, count)

    told = Expect(
        kind=CollectiveKind.BROADCAST,
        meaning=ORDER,
        work_bytes=INDEX_BYTES * (count + 1),
        holds=lambda content: order(content) is not None,
    )
    came = yield (told, _buffers())
    while came.expect.meaning == BUFFERS:
        came = yield (told, _buffers())
    found = order(_content(came))
    assert found is not None
    indices, buckets = found

    def sizes(content: Content) -> tuple[int, ...] | None:
        return ddp_messages.parse_bucket_sizes(content, buckets, count)

    came = yield (
        Expect(
            kind=CollectiveKind.BROADCAST,
            meaning=SIZES,
            work_bytes=INDEX_BYTES * buckets,
            holds=lambda content: sizes(content) is not None,
        ),
    )
    parted = sizes(_content(came))
    assert parted is not None
    return ddp_messages.buckets_of(indices, parted)


def _content(came: Came) -> Content:
    assert came.content is not None
    return came.content
