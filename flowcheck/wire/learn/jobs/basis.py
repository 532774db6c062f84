"""What a learned job rests on: what was read, and what nothing seen could contradict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowcheck.findings.catalog import hybrid_jobs as hybrid
from flowcheck.findings.catalog import job_learning as learning
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.p2p import Completion
from flowcheck.wire.learn.jobs.begun import Begun
from flowcheck.wire.learn.jobs.one import seen_once
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.iteration import disputed
from flowcheck.wire.learn.trainer.own import in_stated_order
from flowcheck.wire.learn.trainer.scalars import places_open, places_told
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.training_job import learned_job


def evidence(
    communicator: Communicator,
    parameters: Sequence[learned_job.Parameter],
    begun: Begun,
    completions: Mapping[int, Completion],
    came: int | None = None,
) -> tuple[Finding, ...]:
    """What was read. parameters: the job's. came: whole buckets of the first iteration under the
    plan; None: all."""
    ring, habits = communicator.ring, communicator.habits
    how = learning.BUCKETS if habits.buckets else learning.BUCKETS_OF_BEFORE
    how = learning.BUCKETS_BY_MAPS if habits.mapped else how
    buckets = len(begun.buckets) - begun.mapped
    if habits.own is not None:
        return (
            learning.STATED_PARAMETERS(
                parameters=len(parameters), elements=sum(one.elements for one in parameters)
            ),
            learning.STATED_MODEL_REDUCES(all_reduces=buckets, layout=habits.own),
            learning.EVERY_SEND_FITS(ranks=ring.ranks, channels=ring.channels),
        )
    by_model = habits.types is not None and habits.types.stated
    types = learning.ELEMENT_BYTES_BY_MODEL if by_model else learning.ELEMENT_BYTES_BY_WEIGHTS
    told = [
        learning.START_UP_PARAMETERS(parameters=habits.parameters, elements=habits.elements),
        types(sorted(set(habits.each))),
        how(buckets),
        learning.EVERY_SEND_FITS(ranks=ring.ranks, channels=ring.channels),
    ]
    if where := places_told(habits):
        told.append(where)
    if ring.gpus > 1 and len(ring.edges) > 1:
        told.append(learning.NODES(ranks=ring.ranks, nodes=ring.ranks // ring.gpus, gpus=ring.gpus))
    if came is not None:
        told.insert(3, learning.REST_BY_PLAN(came=came, buckets=buckets))
    if habits.compressed:
        told.insert(2, learning.GRADIENT_ELEMENT_BYTES(habits.reduced[0]))
    if habits.types is not None and habits.types.beside:
        sent = habits.types.sent
        buffers = sum(tensor.buffer for tensor in sent)
        frozen = len(sent) - buffers - habits.parameters
        told.append(learning.FROZEN_AND_BUFFERS_PLACED(frozen=frozen, buffers=buffers))
    if begun.mapped:
        told.append(learning.FIND_UNUSED_PARAMETERS())
    if habits.static:
        told.append(learning.STATIC_GRAPH(len(begun.never_used)))
    if completions:
        told.append(learning.COMPLETED_POINT_TO_POINT())
    return tuple(told)


def assumed(
    communicator: Communicator,
    collected: Found,
    each: Sequence[learned_job.CollectiveOp],
    sizes: Sequence[int],
) -> tuple[Finding, ...]:
    """What nothing seen could contradict. each: an iteration; sizes: [bucket] bytes."""
    completions = collected.completions
    habits, cuts = communicator.habits, communicator.cuts.found
    told = [] if habits.buckets else [learning.BUCKETS_AS_BEFORE()]
    if habits.own is not None:
        told += [learning.WITHOUT_DDP(), learning.STATED_SHAPES()]
        told += [
            learning.OTHER_ORDER_FITS(layout=habits.own, other=other) for other in habits.own_others
        ]
        told += [learning.IN_STATED_ORDER()] * in_stated_order(habits.own)
        by_order = habits.own.is_any_of(hybrid.GROUPS_BY_ORDER)
        told += [hybrid.ORDER_OF_EQUAL_GROUPS().until_audited()] * by_order
    told += [habits.plan_by] if habits.plan_by is not None else []
    told += [learning.ONE_ITERATION_SEEN()] * (habits.mapped and seen_once(cuts))
    told += communicator.ring.by_gpu
    if any(op.kind is CollectiveKind.BROADCAST for op in each):
        stated = habits.types is not None and habits.types.beside
        told.append((learning.BUFFERS_OF_START if stated else learning.BUFFERS_OF_TEMPLATE)())
    if habits.compressed and habits.own is not None:
        pass  # in the type that is stated, which every size bears out
    elif habits.compressed:
        told.append(
            learning.COMPRESSED(
                gradient_bytes=habits.reduced[0], parameter_bytes=habits.element_bytes
            )
        )
    elif habits.element_bytes == 2:
        told.append(learning.SAME_TYPE())
    if len(set(sizes)) == 1:
        told.append(learning.ALL_ALIKE())
    if disputed(cuts, habits.reduces):
        told.append(learning.BUCKET_BY_ORDER())
    if collected.counted < len(cuts):
        told.append(learning.LATER_ITERATIONS_OPEN())
    alike = [s for s in habits.shapes[1:] if s.cost == habits.shapes[0].cost]
    if open_places := places_open(habits):
        told.append(open_places)
    elif alike:
        told.append(learning.SHAPES_CUT(len(alike)))
    if completions:
        told.append(learning.POINT_TO_POINT_CHUNK())
    return tuple(told)
