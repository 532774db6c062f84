"""The states of the extract stage, of a replica and of a job's incarnation, and which may follow
which.

A state only names what the facts in shared memory and in files say; it decides nothing by itself.
So a transition that its table does not have is a mistake in FlowCheck, and no reason to stop. In
tests it raises; in a live chain the operator is told, and the stage continues in the state that the
facts give. The README of flowcheck/stages has diagrams of the tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from flowcheck.findings.catalog.run_directories import ILLEGAL_TRANSITION
from flowcheck.findings.finding import Finding

STRICT_VARIABLE = "FLOWCHECK_STRICT_STATES"
"""Environment variable: where it is set, an illegal transition raises. Tests set it, for themselves
and for the stages they start."""


class ExtractState(StrEnum):
    """What the extract stage does with the messages that come."""

    STAGING = "staging"
    """No job is proved: messages are kept until they prove one."""
    FOLLOWING = "following"
    """The bytes of a job's messages are placed in its gradients."""
    CLOSING = "closing"
    """A later incarnation of the job is proved: the last whole steps of the old one are finished.
    The proof is in this process's memory alone: killed, it follows the old one and proves again."""
    HANDING_OVER = "handing over"
    """The later incarnation is offered to the updater, whose verdict is waited for."""
    TURNED_DOWN = "turned down"
    """The updater does not follow the later incarnation: nothing is placed any more."""
    ENDED = "ended"
    """The sources ended and every step is settled. Not on file: after a kill the stage comes to the
    same end again."""


class ReplicaState(StrEnum):
    """What the updater does with the replica."""

    ABSENT = "absent"
    """No replica is open: no job is learned, or the updater has just been started."""
    APPLYING = "applying"
    """Each whole step is applied as it comes."""
    AWAITING_BASE = "awaiting base"
    """The state that the job began with, or that it has behind a step which lacks bytes, is not
    known: gradients are logged until it is given."""
    CATCHING_UP = "catching up"
    """A base was given: the logged gradients are being applied."""
    REPLAYING = "replaying"
    """A trainer's checkpoint replaced the state of a step: the later steps are applied again, from
    gradients that were kept."""
    HANDED_OVER = "handed over"
    """A later incarnation of the job was accepted: the extractor does not follow it yet."""
    STOPPED = "stopped"
    """No later step of this incarnation can be applied."""


class IncarnationState(StrEnum):
    """What became of one incarnation of a job, told by the records of both stages."""

    UNLEARNED = "unlearned"
    """Nothing is known of it yet."""
    OFFERED = "offered"
    """The extractor has proved it and finished the one before."""
    ACCEPTED = "accepted"
    """The updater knows how the replica goes on with it."""
    TURNED_DOWN = "turned down"
    """The updater does not follow it."""
    AWAITS_BASE = "awaits base"
    """It is followed, and the state that it began with is not known."""
    FOLLOWED = "followed"
    """It is followed on the state that it began with, or that a base gave."""
    ANCHORED = "anchored"
    """As followed, on the state of a trainer's checkpoint, which replaced the replica's own."""
    OVER = "over"
    """A later one is followed."""


EXTRACT_TRANSITIONS: Mapping[ExtractState, Mapping[ExtractState, str]] = {
    ExtractState.STAGING: {
        ExtractState.FOLLOWING: "a job is proved",
        ExtractState.ENDED: "the sources end and prove no job",
    },
    ExtractState.FOLLOWING: {
        ExtractState.CLOSING: "a later incarnation is proved",
        ExtractState.ENDED: "the sources end",
    },
    ExtractState.CLOSING: {
        ExtractState.HANDING_OVER: "the last whole step is applied",
    },
    ExtractState.HANDING_OVER: {
        ExtractState.FOLLOWING: "the updater accepts the later incarnation",
        ExtractState.TURNED_DOWN: "the updater turns it down",
    },
    ExtractState.TURNED_DOWN: {
        ExtractState.ENDED: "the sources end",
    },
    ExtractState.ENDED: {},
}

REPLICA_TRANSITIONS: Mapping[ReplicaState, Mapping[ReplicaState, str]] = {
    ReplicaState.ABSENT: {
        ReplicaState.APPLYING: "it is opened and its state is known",
        ReplicaState.AWAITING_BASE: "it is opened and its state is not known",
        ReplicaState.CATCHING_UP: "it is opened as an earlier version left it",
        ReplicaState.REPLAYING: "it is opened as an earlier version left it",
        ReplicaState.HANDED_OVER: "it is opened as an earlier version left it",
        ReplicaState.STOPPED: "it is opened and its next step is lost",
    },
    ReplicaState.APPLYING: {
        ReplicaState.REPLAYING: "a trainer's checkpoint replaces an earlier step",
        ReplicaState.STOPPED: "a step is lost or a later incarnation turned down",
        ReplicaState.AWAITING_BASE: "a step lacks bytes that may matter to every element",
        ReplicaState.HANDED_OVER: "a later incarnation is accepted",
    },
    ReplicaState.AWAITING_BASE: {
        ReplicaState.CATCHING_UP: "a base is given",
        ReplicaState.APPLYING: "a base is given and nothing was logged",
        ReplicaState.STOPPED: "nothing was logged behind its base or a later one is turned down",
        ReplicaState.HANDED_OVER: "a later incarnation is accepted",
    },
    ReplicaState.CATCHING_UP: {
        ReplicaState.APPLYING: "all that was logged is applied",
        ReplicaState.AWAITING_BASE: "the next step lacks bytes that may matter to every element",
        ReplicaState.STOPPED: "all is and the next step is lost or had no room in the log",
    },
    ReplicaState.REPLAYING: {
        ReplicaState.APPLYING: "all steps since are applied again",
        ReplicaState.AWAITING_BASE: "the next step lacks bytes that may matter to every element",
        ReplicaState.STOPPED: "all are and the next step is lost",
    },
    ReplicaState.STOPPED: {
        ReplicaState.APPLYING: "it is a copy in damaged memory, and took a whole state",
        ReplicaState.REPLAYING: "a trainer's checkpoint replaces an earlier step",
        ReplicaState.HANDED_OVER: "a later incarnation is accepted",
    },
    ReplicaState.HANDED_OVER: {
        ReplicaState.APPLYING: "it is followed and its state is known",
        ReplicaState.AWAITING_BASE: "it is followed and its state is not known",
    },
}

INCARNATION_TRANSITIONS: Mapping[IncarnationState, Mapping[IncarnationState, str]] = {
    IncarnationState.UNLEARNED: {
        IncarnationState.FOLLOWED: "the first one is learned",
        IncarnationState.AWAITS_BASE: "the first one is learned and its state is not known",
        IncarnationState.OFFERED: "a later one is proved",
    },
    IncarnationState.OFFERED: {
        IncarnationState.ACCEPTED: "it began with a step that is kept or waits for a base",
        IncarnationState.TURNED_DOWN: "it cannot be followed",
    },
    IncarnationState.ACCEPTED: {
        IncarnationState.FOLLOWED: "the extractor takes its files over",
        IncarnationState.AWAITS_BASE: "the extractor takes its files over",
    },
    IncarnationState.AWAITS_BASE: {
        IncarnationState.FOLLOWED: "a base is given or none is needed",
        IncarnationState.OVER: "a later one is followed",
    },
    IncarnationState.FOLLOWED: {
        IncarnationState.ANCHORED: "a trainer's checkpoint replaces a step",
        IncarnationState.OVER: "a later one is followed",
    },
    IncarnationState.ANCHORED: {
        IncarnationState.OVER: "a later one is followed",
    },
    IncarnationState.TURNED_DOWN: {},
    IncarnationState.OVER: {},
}


class IllegalTransition(AssertionError):
    """A state followed another one that its table does not allow before it."""


S = TypeVar("S", bound=StrEnum)


def check_transition(
    what: str,
    table: Mapping[S, Mapping[S, str]],
    before: S,
    after: S,
    tell: Callable[[Finding], None],
) -> None:
    """Raises IllegalTransition, in tests only; otherwise tells the operator. what: whose states
    they are, for people."""
    if after is before or after in table[before]:
        return
    found = ILLEGAL_TRANSITION(what=what, before=before, after=after)
    if os.environ.get(STRICT_VARIABLE):
        raise IllegalTransition(str(found))
    tell(found)
