"""What a learned job rests on: what was read, and what nothing seen could contradict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.p2p import Completion
from flowcheck.wire.learn.jobs.again import FROM_BEFORE
from flowcheck.wire.learn.jobs.begun import Begun
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.grammar import ORDER, SIZES
from flowcheck.wire.learn.trainer.iteration import ALL_ALIKE, BY_ORDER, disputed
from flowcheck.wire.learn.trainer.own import STATED_ORDER
from flowcheck.wire.learn.trainer.scalars import places_open, places_told
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.training_job import learned_job

NODES = "{} ranks on {} nodes of {} GPUs: what comes in complete goes out as many ring steps later"
LATER_OPEN = "where later iterations begin: what came between them may be read otherwise"
BUFFERS_KEPT = (
    "what every forward broadcasts are buffers, like BatchNorm's running statistics: they are no "
    "part of the replica, a restored state has those of its template"
)
BUFFERS_STAY = (
    "what every forward broadcasts are buffers, like BatchNorm's running statistics: they are not "
    "followed, a restored state has those of the start, or of its template"
)
COMPRESSED = (
    "gradients are reduced in {} bytes an element, the parameters have {}: as torch's "
    "fp16_compress_hook and bf16_compress_hook do, which divide before they reduce"
)
SAME_TYPE = (
    "gradients are of the parameters' type: a communication hook that sends the other type of 2 "
    "bytes would not show"
)
STATED = "{} parameters of {} elements: the stated model"
STATED_TYPES = "the stated model, with which the size of all that was sent is in keeping"
BESIDE = (
    "{} frozen parameters and {} buffers stand in the start-up broadcasts where the stated model "
    "has them: each broadcast is as large as that gives"
)
OWN_BUCKETS = "{} all-reduces of the stated model's gradients, {}: their sizes, in every iteration"
WITHOUT_DDP = (
    "a trainer without DistributedDataParallel: what it sums are gradients, which it divides by "
    "[optimizer] gradient_divisor (1 where none is stated) and steps once for each time that all "
    "were summed"
)
STATED_SHAPES = (
    "names, shapes and types are the stated model's: the wire tells how many bytes a gradient has"
)
IN_STATED_ORDER = (
    "gradients lie in the order that [model] states: other orders may have these sizes as well"
)
AS_WELL = "gradients lie {}: {} fits the sizes as well ([model] order states it)"
BY_MAPS = "the all-reduces between two maps, parameters in registration order, the last first"
MAPPED = (
    "find_unused_parameters=True: no bucket plan is sent, and every iteration ends with the map of "
    "how many ranks used each parameter"
)
STATIC = "static_graph=True: by the map before its first gradients, {} parameters are never used"


def evidence(
    communicator: Communicator, begun: Begun, completions: Mapping[int, Completion]
) -> tuple[str, ...]:
    """What was read."""
    ring, habits = communicator.ring, communicator.habits
    how = f"the {ORDER} and {SIZES} broadcasts" if habits.buckets else "the incarnation before"
    how = BY_MAPS if habits.mapped else how
    buckets = len(begun.buckets) - begun.mapped
    if habits.own:
        return (
            STATED.format(habits.parameters, habits.elements),
            OWN_BUCKETS.format(buckets, habits.own),
            f"{ring.ranks} ranks, {ring.channels} channels: every send has the size this gives",
        )
    types = map(str, sorted(set(habits.each)))
    told = [
        f"{habits.parameters} parameters of {habits.elements} elements: start-up messages",
        f"{' and '.join(types)} bytes an element: "
        + (STATED_TYPES if habits.types and habits.types.stated else "size of the initial weights"),
        f"{buckets} buckets: {how}",
        f"{ring.ranks} ranks, {ring.channels} channels: every send has the size this gives",
    ]
    if where := places_told(habits):
        told.append(where)
    if ring.gpus > 1 and len(ring.edges) > 1:
        told.append(NODES.format(ring.ranks, ring.ranks // ring.gpus, ring.gpus))
    if habits.compressed:
        told.insert(2, f"gradients of {habits.reduced[0]} bytes an element: size of iteration 0")
    if habits.types is not None and habits.types.beside:
        sent = habits.types.sent
        buffers = sum(tensor.buffer for tensor in sent)
        told.append(BESIDE.format(len(sent) - buffers - habits.parameters, buffers))
    if begun.mapped:
        told.append(MAPPED)
    if habits.static:
        told.append(STATIC.format(len(begun.never_used)))
    if completions:
        told.append("point-to-point sends complete the all-reduces: exactly the size missing")
    return tuple(told)


def assumed(
    communicator: Communicator,
    collected: Found,
    each: Sequence[learned_job.CollectiveOp],
    sizes: Sequence[int],
) -> tuple[str, ...]:
    """What nothing seen could contradict. each: an iteration; sizes: [bucket] bytes."""
    completions = collected.completions
    habits, cuts = communicator.habits, communicator.cuts.found
    told = [] if habits.buckets else [FROM_BEFORE]
    if habits.own:
        told += [WITHOUT_DDP, STATED_SHAPES]
        told += [AS_WELL.format(habits.own, other) for other in habits.own_others]
        told += [IN_STATED_ORDER] * (STATED_ORDER in habits.own)
    told += communicator.ring.by_gpu
    if any(op.kind is CollectiveKind.BROADCAST for op in each):
        stated = habits.types is not None and habits.types.beside
        told.append(BUFFERS_STAY if stated else BUFFERS_KEPT)
    if habits.compressed:
        told.append(COMPRESSED.format(habits.reduced[0], habits.element_bytes))
    elif habits.element_bytes == 2:
        told.append(SAME_TYPE)
    if len(set(sizes)) == 1:
        told.append(ALL_ALIKE)
    if disputed(cuts, habits.reduces):
        told.append(BY_ORDER)
    if collected.counted < len(cuts):
        told.append(LATER_OPEN)
    alike = [s for s in habits.shapes[1:] if s.cost == habits.shapes[0].cost]
    if open_places := places_open(habits):
        told.append(open_places)
    elif alike:
        told.append(f"where parameters begin: {len(alike)} other cuts of the shapes fit as well")
    if completions:
        told.append("the point-to-point sends hold the chunk that is missing")
    return tuple(told)
