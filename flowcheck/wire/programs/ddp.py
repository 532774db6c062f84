"""What DistributedDataParallel sends: its start-up, iteration 0, the bucket plan, iterations.

Every parameter is of one dtype. find_unused_parameters sends no plan: its buckets are those of
torch's usual size from iteration 0 on, with a map of used parameters behind them. static_graph
begins with such a map. Buffers are broadcast before a forward, and a script may reduce numbers of
its own between gradients. Parameters of several dtypes, buckets of find_unused_parameters of
another size and other collectives of a script are no part of it: whoever asks gets no answer then.

Sources: torch/csrc/distributed/c10d/reducer.cpp (sync_bucket_indices, rebuild_buckets,
all_reduce_local_used_map), torch/nn/parallel/distributed.py (_pre_forward, _sync_buffers,
_ddp_init_helper).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.ddp_startup.ddp_messages import Buckets
from flowcheck.wire.programs.ddp_start import Model, start_up, weights
from flowcheck.wire.programs.expectation import EXTRA, Came, Content, Expect, Program
from flowcheck.wire.training_job.gradient_buckets import CAP_BYTES, FIRST_CAP_BYTES, assign_buckets
from flowcheck.wire.training_job.learned_job import MAP_BYTES

ORDER, SIZES = "bucket order", "bucket sizes"
BUCKET, BUFFERS = "gradient bucket", "buffers"
PART = "gradient part"
"""As large as parameters next to each other: a bucket, if a map of used parameters follows."""
USED = "used parameters"
COMPRESSED_BYTES = 2
"""Of an element in a bucket under torch's fp16_compress_hook and bf16_compress_hook."""
INDEX_BYTES = 4
"""Of a number in the plan."""
_BUFFERS = Expect(kind=CollectiveKind.BROADCAST, meaning=BUFFERS)
_BESIDE = (EXTRA, _BUFFERS)
"""What may come before any gradient."""
_PASSED_OVER = (EXTRA.meaning, BUFFERS)

Step = Generator[tuple[Expect, ...], Came, Came]


def ddp() -> Program:
    """A job from its start-up on."""
    model, left = yield from start_up()
    if not model.element_bytes:
        return
    for size in _pieces_left(model) if left else ():
        yield (weights(size),)
    every = (tuple(range(model.parameters)),)
    came = yield from _first_of_all(model)
    if came.expect.meaning == PART:
        buckets, reduced = _usual_buckets(model), came.expect.type_bytes
        for bucket in buckets[1:]:
            yield (_gradients(model, bucket, reduced, PART),)
        yield (_used(model, sure=False),)
        yield from _iterations(model, buckets, reduced, mapped=True)
        return
    static = came.expect.meaning == USED
    if static:
        came = yield from _next(*_whole(model))
    reduced = came.expect.type_bytes
    again = _gradients(model, every[0], reduced, BUCKET)
    maps = () if static else (_used(model, sure=False),)
    order = _order(model)
    came = yield from _next(order, *maps, again)
    while came.expect.meaning == BUCKET:
        came = yield from _next(order, again)
    if came.expect.meaning == USED:
        yield from _iterations(model, every, reduced, mapped=True)
        return
    buckets = yield from _plan(model, came)
    yield from _iterations(model, buckets, reduced, mapped=False)


def _pieces_left(model: Model) -> list[int]:
    """Bytes of the broadcasts of weights behind the first one."""
    sizes = [count * model.element_bytes for count in model.shapes.counts]
    return [size for _, size in ddp_messages.weight_broadcasts(sizes)[1:]]


def _first_of_all(model: Model) -> Step:
    """The first all-reduce of iteration 0, behind what is broadcast of buffers: of everything, of
    the first bucket of find_unused_parameters, or the map of a static graph."""
    usual = _usual_buckets(model)
    parts = [_gradients(model, usual[0], each, PART) for each in _types(model)]
    due = (_used(model, sure=False), *_whole(model), *(parts if len(usual) > 1 else ()))
    # What a script reduces itself would be as good as a bucket of another size.
    came = yield (*due, weights(0))
    while came.expect.meaning not in (USED, BUCKET, PART):
        came = yield (*due, weights(0))
    return came


def _next(*due: Expect) -> Step:
    """What is due, behind whatever may come before it."""
    came = yield (*due, *_BESIDE)
    while came.expect.meaning in _PASSED_OVER:
        came = yield (*due, *_BESIDE)
    return came


def _iterations(model: Model, buckets: Buckets, element_bytes: int, *, mapped: bool) -> Program:
    """One after the other, without an end; where a map ends each of them, until a plan contradicts
    that."""
    every = [_gradients(model, bucket, element_bytes, BUCKET) for bucket in buckets]
    every += [_used(model, sure=True)] * mapped
    plan = (_order(model),) if mapped else ()
    lead = yield from _lead(every[0], plan)
    while True:
        for due in every[1:]:
            came = yield from _next(due, *plan)
            if came.expect.meaning == ORDER:
                return
        # Each forward sends the buffers that the one before it sent.
        for size in lead:
            yield from _passing(replace(_BUFFERS, work_bytes=size))
        came = yield from _next(every[0], *plan)
        if came.expect.meaning == ORDER:
            return


def _lead(due: Expect, plan: Sequence[Expect]) -> Generator[tuple[Expect, ...], Came, list[int]]:
    """Sizes of the buffers that are sent before the first gradients."""
    lead: list[int] = []
    came = yield (due, *plan, *_BESIDE)
    while came.expect.meaning in _PASSED_OVER:
        lead += [came.work_bytes] * (came.expect.meaning == BUFFERS)
        came = yield (due, *plan, *_BESIDE)
    return lead


def _passing(due: Expect) -> Step:
    """What is due, behind what a script may reduce before it."""
    came = yield (due, EXTRA)
    while came.expect is EXTRA:
        came = yield (due, EXTRA)
    return came


def _types(model: Model) -> Sequence[int]:
    """Bytes that an element may have in a bucket."""
    return tuple(dict.fromkeys((model.element_bytes, COMPRESSED_BYTES)))


def _whole(model: Model) -> list[Expect]:
    """All gradients, in each type that they may have."""
    every = tuple(range(model.parameters))
    return [_gradients(model, every, each, BUCKET) for each in _types(model)]


def _usual_buckets(model: Model) -> Buckets:
    """Those of a trainer that sets no bucket_cap_mb; the last parameters come first."""
    sizes = [count * model.element_bytes for count in model.shapes.counts]
    return assign_buckets(sizes, (FIRST_CAP_BYTES, CAP_BYTES))[::-1]


def _gradients(model: Model, parameters: Sequence[int], element_bytes: int, meaning: str) -> Expect:
    return Expect(
        kind=CollectiveKind.ALL_REDUCE,
        meaning=meaning,
        work_bytes=model.bytes_of(parameters, element_bytes),
        type_bytes=element_bytes,
    )


def _used(model: Model, *, sure: bool) -> Expect:
    """How many ranks used each parameter. sure: the plan puts it there, so that it need not be
    looked at."""

    def counts(content: Content, ranks: int) -> bool:
        used = content[: MAP_BYTES * model.parameters].view("<i4")
        return bool((used >= 0).all() and (used <= ranks).all() and used.any())

    return Expect(
        kind=CollectiveKind.ALL_REDUCE,
        meaning=USED,
        work_bytes=MAP_BYTES * model.parameters,
        holds=None if sure else counts,
    )


def _order(model: Model) -> Expect:
    """The parameters, bucket after bucket, as rank 0 tells them at the second forward."""
    count = model.parameters
    return Expect(
        kind=CollectiveKind.BROADCAST,
        meaning=ORDER,
        work_bytes=INDEX_BYTES * (count + 1),
        holds=lambda content, ranks: ddp_messages.parse_bucket_indices(content, count) is not None,
    )


def _plan(model: Model, order: Came) -> Generator[tuple[Expect, ...], Came, Buckets]:
    """The buckets of every later iteration. order: the broadcast that tells it."""
    count = model.parameters
    found = ddp_messages.parse_bucket_indices(_content(order), count)
    assert found is not None
    indices, buckets = found

    def sizes(content: Content) -> tuple[int, ...] | None:
        return ddp_messages.parse_bucket_sizes(content, buckets, count)

    came = yield (
        Expect(
            kind=CollectiveKind.BROADCAST,
            meaning=SIZES,
            work_bytes=INDEX_BYTES * buckets,
            holds=lambda content, ranks: sizes(content) is not None,
        ),
    )
    parted = sizes(_content(came))
    assert parted is not None
    return ddp_messages.buckets_of(indices, parted)


def _content(came: Came) -> Content:
    assert came.content is not None
    return came.content
