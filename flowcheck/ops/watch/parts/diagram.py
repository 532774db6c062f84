"""What a drawing of a learned job is made of."""

from __future__ import annotations

from flowcheck.ops.watch.parts.part import Part


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
