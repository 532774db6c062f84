"""Parts of a job's state: what drawings of it are made of, and files that took a step's place."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of a state."""


class Arrival(Part, frozen=True, kw_only=True):
    """When something of a job last came, as its supervisor counts it every half second."""

    age_s: float
    """Since the last packet of it."""
    limit_s: float
    """For longer nothing may come: ten of its median steps, 30 s at least."""
    step_s: float | None
    """Its median step; None: fewer than two were whole."""
    newest_step: int | None
    """That a packet came of, told while packets of a step that is not taken are missing."""
    unplaced_s: float
    """For how long packets came that no plan has, since the last one that a plan does."""

    @property
    def silent(self) -> bool:
        return self.age_s > self.limit_s


class Anchor(Part, frozen=True, kw_only=True):
    """A file of the trainer's that took the place of a step of the replica's."""

    step: int
    file: str
    at: int
    """The replica's step then."""


class Link(Part, frozen=True, kw_only=True):
    """A mirrored link of a ring of ranks, from a node to another, by their places in it."""

    sender: int
    receiver: int
    sources: tuple[str, ...]
    """Addresses."""
    destinations: tuple[str, ...]
    channels: tuple[int, ...]
    queue_pairs: tuple[int, ...]
    protocols: tuple[str, ...]
    rx: tuple[str, ...]
    """Switch ports that are stated to copy it as they receive it from the sender."""
    tx: tuple[str, ...]
    """And those that copy it as they send it to the receiver."""
    tree: bool
    """Only trees pass there: it is no link of the ring."""


class Diagram(Part, frozen=True, kw_only=True):
    """One communicator of the learned job: what a drawing of it needs."""

    number: int
    ranks: int
    nodes: int
    """ranks // gpus: so many places the ring has."""
    gpus: int
    """Ranks of a node."""
    channels: int
    ring: bool
    """False: point-to-point connections, whose ends are not numbered."""
    hosts: tuple[str, ...]
    """[nodes] addresses; empty: no mirrored link ends there."""
    links: tuple[Link, ...]
    """All links that are mirrored; those between other nodes are not."""
    chunk_links: tuple[int, ...]
    """[chunk] on how many mirrored links its sum passes; -1: it has no byte; (): not known."""
    summary: tuple[str, ...]
    """Sentences, as `flowcheck analyze` prints them."""
