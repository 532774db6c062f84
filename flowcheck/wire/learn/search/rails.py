"""The rings that sum a stated job's groups, apart from connections of the job's other
communicators that share its port.

Over a mesh of several shards, the communicator of all ranks has one link out of a node, by one of
its GPUs, and one into it, by another one: of these a port of one GPU shows one or none. Such a
connection alone looks like one channel more of the rail's. torch sends on it once the script
calls torch.distributed.checkpoint, whose objects go to the default group
(torch 2.13, torch/distributed/checkpoint/utils.py: _DistWrapper).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.cut import Purse
from flowcheck.wire.learn.cuts.purse import share
from flowcheck.wire.learn.flows.groups import alone
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator, read_group
from flowcheck.wire.learn.search.own import by_stated_model
from flowcheck.wire.training_job.operator_statements import OperatorStatement

MOST_TRIED = 16
"""Connections of the fuller direction that are tried as the rail's. A choice: NCCL makes two to
eight channels between nodes by itself, and a script few communicators more."""
TRY_SHARE = 4
"""A try may spend one of so many parts of the search that is left."""


@dataclass(frozen=True, slots=True)
class Rail:
    """A rail's communicator, and what is not of it."""

    own: Communicator
    left: tuple[Stream, ...]
    """Connections of other communicators, at least one."""


def rail_beside(
    streams: Sequence[Stream],
    rules: tuple[NcclEra, ...],
    stated: OperatorStatement | None,
    purse: Purse,
    logged: Sequence[RingOrder],
) -> Rail | None:
    """The communicator that sums the stated groups, apart from what is left; None where as many
    connections lead into the mirrored host as out of it, or where no part of them has these sums.
    """
    if stated is None or not stated.groups:
        return None
    for part in _parts(streams):
        with share(purse, TRY_SHARE) as own:
            read = read_group(alone(part, ()), rules, own, logged=logged)
            told = by_stated_model((read,), stated, own or purse) if read is not None else []
        for one in told:
            if one.habits.own is not None and not one.cuts.unread:
                ends = {id(stream) for stream in part}
                return Rail(one, tuple(s for s in streams if id(s) not in ends))
    return None


def _parts(streams: Sequence[Stream]) -> Iterator[list[Stream]]:
    """Connections of which as many lead into the one mirrored host as out of it: all of the
    direction that has fewer, and as many of the other, made one after the other."""
    ends = [{stream.key.source, stream.key.destination} for stream in streams]
    common = sorted(set.intersection(*ends)) if ends else []
    if not common:
        return
    into = [s for s in streams if s.key.destination == common[0]]
    out = [s for s in streams if s.key.destination != common[0]]
    fewer, more = sorted((into, out), key=len)
    if not fewer or len(fewer) == len(more) or len(more) > MOST_TRIED:
        return
    more = sorted(more, key=lambda s: s.key.dest_qp)
    for at in range(len(more) - len(fewer) + 1):
        part = {id(s) for s in (*fewer, *more[at : at + len(fewer)])}
        yield [s for s in streams if id(s) in part]
