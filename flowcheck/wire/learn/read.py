"""From flows and messages to a Reading: the one entry of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from flowcheck.wire.buckets import BROADCAST_CAP_BYTES
from flowcheck.wire.job import Job
from flowcheck.wire.learn.cuts.cut import Purse
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.jobs import tree
from flowcheck.wire.learn.jobs.job import NO_START, NOT_YET, learn_job
from flowcheck.wire.learn.jobs.own import learn_own
from flowcheck.wire.learn.jobs.parted import learn_parted
from flowcheck.wire.learn.jobs.parted_basis import STATES
from flowcheck.wire.learn.jobs.sharded import Learned, gathers, learn_sharded, with_sums
from flowcheck.wire.learn.jobs.sharded_basis import SHARDED
from flowcheck.wire.learn.jobs.zero import maybe_zero
from flowcheck.wire.learn.reading import Collective, Reading, Weights
from flowcheck.wire.learn.search.communicators import Communicator, ring_and_p2p, rules_told
from flowcheck.wire.learn.search.evidence import lost_beside
from flowcheck.wire.learn.search.own import by_stated_model
from flowcheck.wire.learn.search.parted import apart_from
from flowcheck.wire.learn.search.several import find_communicators
from flowcheck.wire.learn.trainer.grammar import BUCKET, WEIGHTS, Habits
from flowcheck.wire.learn.verdict import apart, formats
from flowcheck.wire.learn.verdict.collect import Found, collect, parcels_left
from flowcheck.wire.learn.verdict.doubt import CHANNEL_ORDER
from flowcheck.wire.learn.verdict.ends import end_open
from flowcheck.wire.learn.verdict.others import others
from flowcheck.wire.learn.verdict.pads import hidden
from flowcheck.wire.parted import Parted
from flowcheck.wire.seen import FlowSeen, MessageSeen
from flowcheck.wire.stated import Stated
from flowcheck.wire.terms import GRAIN_BYTES, LL_LINE_DATA_BYTES, Protocol, Rule

BROKEN_OFF = (
    "too much was lost to try every reading: the search was broken off, what it says is less"
)
NOT_LOST = (
    "nothing was lost, and still no reading explains every send: the trainers do something that is "
    "not known here; the search was broken off"
)
IN_ONE_LINE = (
    "the initial weights are {} bytes: as few as any number has that ranks tell each other, so "
    "that nothing tells a model of it"
)
END_TOLD_BY_NONE = (
    "where the initial weights end is not told: other shapes, or elements of another size, fit the "
    "start-up as well"
)
STATED = "NCCL's release is {}, as the job file states"
CONTRADICTED = "NCCL's release is not {}, as the job file states: the frames are of another one"
FROZEN = (
    "the start-up broadcast holds {:,} bytes beside the parameters that take gradients, and no "
    "forward sent as many: frozen parameters, or buffers that are not broadcast, lie among the "
    "weights, and where is not told"
)
NO_FROZEN = "no parameters are frozen: up to {:,} bytes of them would not show among the weights"


def read_stream(
    flows: Sequence[FlowSeen],
    messages: Sequence[MessageSeen],
    *,
    ended: bool = True,
    release: Rule | None = None,
    before: Job | None = None,
    blocks: Sequence[int] = (),
    hasty: bool = False,
    stated: Stated | None = None,
    parted: Parted | None = None,
) -> Reading:
    """Everything these messages tell, without any job file. `ended`: nothing more will come; a
    job is then learned from less, see `learn_job`, and so is the next incarnation of the one
    `before`. release: NCCL's, where it is stated; blocks: bytes of one rank's part of each unit of
    sharded training, where the model is known; hasty: what is hard to read now will be read again
    once more came; stated: what the wire may not tell; parted: what a trainer sends whose optimizer
    is parted, where that is stated."""
    sorted_flows = sort_flows(flows, messages)
    ring_streams, p2p_streams = ring_and_p2p(sorted_flows.streams)
    purse = Purse.for_sends(sum(len(s.sends) for s in ring_streams), hasty=hasty)
    rules = rules_told(sorted_flows, release)
    logged = stated.rings if stated is not None else ()
    own, left = apart_from(ring_streams, sorted_flows.grants, rules, parted)
    communicators = own + find_communicators(left, sorted_flows.grants, rules, purse, logged)
    communicators = by_stated_model(communicators, stated, purse)
    found = [
        collect(
            c,
            number,
            p2p_streams,
            apart=any(lost_beside(c.ring, o.ring) for o in communicators if o is not c),
            broken_off=purse.left <= 0,
        )
        for number, c in enumerate(communicators)
    ]
    everything = [c for f in found for c in f.collectives]
    everything += parcels_left(p2p_streams, len(communicators))
    if old := formats.old_ll128(sorted_flows, communicators):
        everything = formats.in_doubt(everything)
    everything.sort(key=lambda c: c.first_ns)
    numbered = tuple(replace(c, index=i) for i, c in enumerate(everything))
    job, why_not = learn_job(communicators, found, ended=ended, before=before)
    if job is None and (why_not == (NO_START,) or any(c.habits.own for c in communicators)):
        job, why_not = learn_own(communicators, found, stated, ended=ended)
    sharded = None if job is not None else _parameters(own, communicators, parted, blocks)
    if sharded is not None:
        job, why_not = sharded.job, sharded.why_not
    elif job is None:
        maybe, numbered = maybe_zero(numbered)
        why_not = (*why_not, *maybe)
    if purse.left <= 0 and NOT_YET.issuperset(why_not):
        lost = any(flow.psn_missing for flow in flows) or not all(
            stream.from_start for stream in sorted_flows.streams
        )
        why_not = (*why_not, BROKEN_OFF if lost else NOT_LOST)
    beside, told = _beside(communicators, found)
    if job is not None and beside and told:
        job, why_not = None, (FROZEN.format(beside),)
    elif job is not None and beside:
        job = msgspec.structs.replace(job, assumed=(*job.assumed, NO_FROZEN.format(beside)))
    weights = _weights(communicators, found)
    if job is not None and any(CHANNEL_ORDER in c.assumed for f in found for c in f.collectives):
        job = msgspec.structs.replace(job, assumed=(*job.assumed, CHANNEL_ORDER))
    if job is not None and weights is not None and weights.why_not:
        why_not = (*why_not, weights.why_not)
    if not messages:
        why_not = (formats.NO_WRITES,)
    elif not sorted_flows.streams and not any(grant.rings for grant in sorted_flows.grants):
        why_not = (formats.NOT_NCCL.format(len(messages)),)
    if old:
        job, why_not = None, (*why_not, formats.OLD_LL128)
    if job is not None and release is not None:
        sentence = (STATED if rules == (release,) else CONTRADICTED).format(release)
        job = msgspec.structs.replace(job, evidence=(*job.evidence, sentence))
    return Reading(
        flows=sorted_flows.readings,
        collectives=with_sums(numbered, job)
        if job is not None
        else tree.in_doubt(communicators, numbered),
        weights=weights,
        job=job,
        why_not=(*why_not, *(s for c in communicators for s in _unread(c))),
        formats=formats.told(sorted_flows),
        others=others(communicators, p2p_streams, before),
        gathered=None if sharded is None else sharded.base,
    )


def _parameters(
    own: Sequence[Communicator],
    communicators: Sequence[Communicator],
    parted: Parted | None,
    blocks: Sequence[int],
) -> Learned | None:
    """The job of which parameters alone are followed, or why there is none, and what it is; None
    where nothing is like one."""
    if parted is not None:
        learned = learn_parted(own, parted)
        return replace(learned, why_not=learned.why_not or (STATES,))
    if not gathers(communicators):
        return None
    learned = learn_sharded(communicators, blocks)
    return replace(learned, why_not=(SHARDED, *learned.why_not))


def _unread(communicator: Communicator) -> list[str]:
    left = communicator.cuts.unread
    return [f"{left} sends fit no collective and stay unread"] if left else []


def _in_whole_pieces(parts: Sequence[Collective], size: int, cap_bytes: int) -> bool:
    """The broadcasts are those torch makes of `size` bytes, of `cap_bytes` or more but the last,
    and nothing about them is in doubt."""
    at = 0
    for part in parts:
        if part.doubtful or part.conflicts:
            return False
        at += part.bytes
        if at >= size:
            return True
        if part.bytes < cap_bytes:
            return False
    return False


def _beside(communicators: Sequence[Communicator], found: Sequence[Found]) -> tuple[int, bool]:
    """(bytes among the weights that are neither parameters nor the buffers that the first forward
    broadcasts by themselves, whether the wire tells that they are there: LL128 pads).

    torch/nn/parallel/distributed.py: _sync_module_states sends frozen parameters in their place,
    before and between the others; _sync_buffers sends buffers, which come behind them all.
    """
    for communicator, collected in zip(communicators, found, strict=True):
        size = communicator.habits.state_bytes
        if communicator.habits.own:
            continue
        sent = [c for c in collected.collectives if c.meaning == WEIGHTS]
        if communicator.habits.types is not None and size:
            rest = apart.beside(communicator.habits, sent, LL_LINE_DATA_BYTES)
            return (rest, True) if rest else hidden(communicator)
        held = at = 0
        while at < len(sent) and held < size:
            held, at = held + sent[at].bytes, at + 1
        beside = held - size
        if not size or not sent or beside < 0:
            continue
        whole = all(part.protocol is Protocol.SIMPLE for part in sent[:at])
        if beside < (1 if whole else LL_LINE_DATA_BYTES):
            return hidden(communicator)
        padded = any(part.protocol is Protocol.LL128 for part in sent[:at])
        grain = GRAIN_BYTES[Protocol.LL128] if padded else LL_LINE_DATA_BYTES
        if padded and beside < grain:
            return beside, False
        unlike = [abs(later.bytes - beside) for later in sent[at:]]
        if min(unlike, default=grain) >= grain:
            return beside, True
        return min(unlike), False
    return 0, False


def _weights(communicators: Sequence[Communicator], found: Sequence[Found]) -> Weights | None:
    """What the start-up broadcasts held, cut to the parameters."""
    for communicator, collected in zip(communicators, found, strict=True):
        habits = communicator.habits
        parts: list[Collective] = [c for c in collected.collectives if c.meaning == WEIGHTS]
        size = habits.state_bytes
        if not parts or not size:
            continue
        if habits.types is not None:
            return _apart(habits, parts)
        result = np.concatenate([part.result for part in parts])[:size]
        missing = []
        at = 0
        for part in parts:
            missing += [(a + at, min(b + at, size)) for a, b in part.missing if a + at < size]
            at += part.bytes
        protocol = parts[-1].protocol
        grain = 1 if habits.own else GRAIN_BYTES[protocol]
        exact = 0 <= sum(part.bytes for part in parts) - size < grain
        reduced = habits.bytes_of(range(habits.parameters), habits.reduced) if habits.reduced else 0
        agreed = exact or any(
            c.kind == "all_reduce" and c.bytes == reduced and c.meaning == BUCKET
            for c in collected.collectives
        )
        # In one line nothing tells the size of an element, nor which cut of the shapes it is.
        told = bool(habits.own)  # by the model that was stated
        open_why = END_TOLD_BY_NONE if not told and end_open(habits, size, protocol) else ""
        if not told and size <= max(grain, LL_LINE_DATA_BYTES):
            open_why = IN_ONE_LINE.format(size)
        pieces = _in_whole_pieces(parts, size, 0 if habits.own else BROADCAST_CAP_BYTES)
        whole = agreed and not open_why and not missing and pieces
        return Weights(
            shapes=tuple(sizes for sizes, _ in habits.shapes[0].shapes),
            result=result,
            missing=tuple(missing),
            complete=whole,
            why_not=open_why,
            assumed=tuple(dict.fromkeys(s for part in parts for s in part.assumed)),
        )
    return None


def _apart(habits: Habits, parts: Sequence[Collective]) -> Weights:
    """Weights of several dtypes."""
    result, missing = apart.in_registration_order(habits, parts)
    assumed = dict.fromkeys(s for part in parts[: len(habits.pieces)] for s in part.assumed)
    return Weights(
        shapes=tuple(sizes for sizes, _ in habits.shapes[0].shapes),
        result=result,
        missing=missing,
        complete=not missing and apart.whole(habits, parts),
        assumed=tuple(assumed),
    )
