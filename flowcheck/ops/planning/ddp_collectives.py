"""The collectives that DistributedDataParallel issues for a model, in order. Pure: no torch, no
I/O.

Sources: torch/nn/parallel/distributed.py (constructor, _pre_forward, _sync_buffers),
torch/csrc/distributed/c10d/reducer.cpp (all_reduce_local_used_map, rebuild_buckets,
sync_bucket_indices, verify_params_across_processes).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.plan_figures import REVERSE_ORDER
from flowcheck.findings.catalog.refused_commands import HOOK, STATIC_GRAPH
from flowcheck.findings.catalog.refused_settings import ABOVE, AT_LEAST
from flowcheck.findings.finding import Finding, code_in_words
from flowcheck.ops.planning.meta_device_model import MetaModel
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.training_job.gradient_buckets import CAP_BYTES, FIRST_CAP_BYTES
from flowcheck.wire.training_job.learned_job import MAP_BYTES
from flowcheck.wire.training_job.operator_statements import StatedTensor

HOOK_BYTES = {"bf16": 2, "fp16": 2}
"""Bytes per gradient element on the wire with torch's compression hooks bf16_compress_hook and
fp16_compress_hook."""


class DdpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of DistributedDataParallel and of the training loop around it. Construction raises
    ConfigError for a value that DDP or the loop does not allow."""

    cap_bytes: int | None = None
    """DDP's bucket_cap_mb in bytes; None: torch's default of 25 MiB, with a first bucket of 1
    MiB."""
    first_cap_bytes: int | None = None
    """Size limit of the first bucket, bytes; None: torch's default for the given bucket_cap_mb."""
    find_unused_parameters: bool = False
    static_graph: bool = False
    broadcast_buffers: bool = True
    hook: str | None = None
    """Communication hook: "bf16" or "fp16" casts gradients to that type before the all-reduce;
    None: no hook."""
    accumulate: int = 1
    """Backward passes per optimizer step."""
    sync_each: bool = False
    """True: each backward pass is all-reduced (gradient accumulation without no_sync)."""

    def __post_init__(self) -> None:
        if self.hook is not None and self.hook not in HOOK_BYTES:
            raise ConfigError("--hook", self.hook, HOOK())
        for key in ("cap_bytes", "first_cap_bytes"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(key, value, ABOVE(0))
        if self.accumulate < 1:
            raise ConfigError("--accumulate", self.accumulate, AT_LEAST(1))
        if self.static_graph and self.accumulate > 1 and not self.sync_each:
            raise ConfigError("--static-graph", True, STATIC_GRAPH())

    @property
    def caps_bytes(self) -> tuple[int, ...]:
        """Size limits in bytes: (first bucket, all later buckets). Defaults as in torch's
        reducer.hpp (kDefaultFirstBucketBytes, kDefaultBucketBytesCap)."""
        rest = CAP_BYTES if self.cap_bytes is None else self.cap_bytes
        first = FIRST_CAP_BYTES if self.cap_bytes is None else rest
        return (self.first_cap_bytes or first, rest)

    @property
    def iterations_per_step(self) -> int:
        """All-reduced backward passes per optimizer step."""
        return self.accumulate if self.sync_each else 1


_SAID_AS = {CollectiveRole.USED_PARAMETERS: "map of used parameters"}
"""Where the words are not the role's own."""


class PlannedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective that DDP is expected to issue."""

    kind: CollectiveKind
    work_bytes: int
    """Bytes of the tensor; of an all-gather, bytes of one rank's block."""
    role: CollectiveRole
    bucket: int | None = None
    """Number of the gradient bucket in its iteration, from 0; None: not a bucket."""
    element_bytes: int = 1
    values: tuple[int, ...] = ()
    """The integers that the collective carries, where the model determines them: parameter shapes
    and strides, or the bucket plan."""
    value_bytes: int = 0
    parameters: tuple[str, ...] = ()
    """Names of the first and the last parameter of a bucket."""

    @property
    def what(self) -> str:
        """Its role in words, for people."""
        words = code_in_words(self.role, _SAID_AS)
        return words if self.bucket is None else f"{words} {self.bucket}"


Collectives = tuple[PlannedCollective, ...]


class DdpTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of a job: those of the start-up, of the first iterations, and of each later
    iteration."""

    start_up: Collectives
    first: tuple[Collectives, ...]
    """Collectives of the iterations that differ from the later ones, from iteration 0 on."""
    each: Collectives
    assumed: tuple[Finding, ...]


def ddp_traffic(model: MetaModel, options: DdpOptions) -> DdpTraffic:
    """The collectives that DDP issues for `model`, in order. Collectives of the training script
    itself (metrics, barriers, SyncBatchNorm) are not included."""
    trained = tuple(tensor.wire for tensor in model.trained)
    count = len(trained)
    buffers = _buffers(model) if options.broadcast_buffers else ()
    used_map = PlannedCollective(
        kind=CollectiveKind.ALL_REDUCE,
        work_bytes=MAP_BYTES * count,
        element_bytes=MAP_BYTES,
        role=CollectiveRole.USED_PARAMETERS,
    )
    whole = _reduces(model, options, ddp_messages.find_unused_buckets(trained, (sys.maxsize,)))
    if options.find_unused_parameters and not options.static_graph:
        capped = _reduces(
            model, options, ddp_messages.find_unused_buckets(trained, _distinct(options))
        )
        each = (*buffers, *capped, used_map)
        return DdpTraffic(start_up=_start_up(model, options), first=(), each=each, assumed=())
    ready = model.ready if model.ready is not None and len(model.ready) == count else None
    later = ddp_messages.rebuilt_buckets(trained, ready, options.caps_bytes)
    rebuilt = _reduces(model, options, later)
    rebuild = (
        _integer_collective(
            CollectiveRole.BUCKET_ORDER,
            CollectiveKind.BROADCAST,
            [*(i for b in later for i in b), len(later)],
            4,
        ),
        _integer_collective(
            CollectiveRole.BUCKET_SIZES,
            CollectiveKind.BROADCAST,
            [len(bucket) for bucket in later],
            4,
        ),
    )
    first = [(*buffers, *whole)]
    if options.static_graph:
        # The graph is known after iteration 0, the order of its gradients after iteration 1.
        first = [(*buffers, used_map, *whole), (*buffers, *whole)]
    first.append((*rebuild, *buffers, *rebuilt))
    return DdpTraffic(
        start_up=_start_up(model, options),
        first=tuple(first),
        each=(*buffers, *rebuilt),
        assumed=(REVERSE_ORDER(),) if ready is None and count > 1 else (),
    )


def _distinct(options: DdpOptions) -> tuple[int, ...]:
    return tuple(dict.fromkeys(options.caps_bytes))


def _start_up(model: MetaModel, options: DdpOptions) -> Collectives:
    """The constructor's: counts and shapes are compared, then rank 0 gives its weights, frozen
    ones and buffers too. broadcast_buffers=False leaves buffers out here as well."""
    trained = model.trained
    shapes = [n for tensor in trained for n in (*tensor.wire.sizes, *tensor.wire.strides)]
    states = [*model.tensors, *(model.buffers if options.broadcast_buffers else ())]
    found = [
        _integer_collective(
            CollectiveRole.PARAMETER_COUNT, CollectiveKind.ALL_GATHER, [len(trained)], 8
        ),
        _integer_collective(CollectiveRole.PARAMETER_SHAPES, CollectiveKind.BROADCAST, shapes, 8),
        *_pieces(states, CollectiveRole.INITIAL_WEIGHTS),
    ]
    return tuple(one for one in found if one.work_bytes)


def _pieces(tensors: Sequence[StatedTensor], role: CollectiveRole) -> Collectives:
    sizes = [tensor.wire.nbytes for tensor in tensors]
    pieces = ddp_messages.weight_broadcasts(sizes, [tensor.wire.dtype for tensor in tensors])
    return tuple(
        PlannedCollective(kind=CollectiveKind.BROADCAST, work_bytes=size, role=role)
        for _, size in pieces
        if size
    )


def _buffers(model: MetaModel) -> Collectives:
    return _pieces(model.buffers, CollectiveRole.BUFFERS)


def _integer_collective(
    role: CollectiveRole, kind: CollectiveKind, values: Sequence[int], width: int
) -> PlannedCollective:
    """Of integers, `width` bytes each."""
    return PlannedCollective(
        kind=kind,
        work_bytes=width * len(values),
        role=role,
        values=tuple(values),
        value_bytes=width,
    )


def _reduces(model: MetaModel, options: DdpOptions, buckets: ddp_messages.Buckets) -> Collectives:
    trained = model.trained
    found = []
    for number, bucket in enumerate(buckets):
        own = trained[bucket[0]].wire.element_bytes
        sent = own if options.hook is None else HOOK_BYTES[options.hook]
        elements = sum(trained[index].wire.elements for index in bucket)
        found.append(
            PlannedCollective(
                kind=CollectiveKind.ALL_REDUCE,
                work_bytes=elements * sent,
                element_bytes=sent,
                role=CollectiveRole.BUCKET,
                bucket=number,
                parameters=(trained[bucket[0]].name, trained[bucket[-1]].name),
            )
        )
    return tuple(found)
