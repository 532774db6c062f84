"""Why packets of a link came more than once: their sender sent them again, or several copies were
mirrored. Pure.

A receiver that misses a packet refuses the next one (NAK), and the sender sends again from there
on, several times where it is lost again. A mirror makes copies without any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from flowcheck.ops.mirror_doctor.port_figures import Link

COPIES_OF_NAK = 1000
"""Copies that one refusal explains: what a queue pair may have under way. A choice."""


class CopyCause(StrEnum):
    """What copies of a link's packets are."""

    SENT_AGAIN = "sent_again"
    MIRRORED_TWICE = "mirrored_twice"
    """Nearly all of them."""
    MIRRORED_IN_PART = "mirrored_in_part"
    EITHER = "either"
    """Nothing that came decides."""


def copy_causes(links: Sequence[Link]) -> list[tuple[Link, CopyCause]]:
    """The links of one port of which write packets came again, each with the cause."""
    ends = {(link.source, link.destination): link for link in links}
    return [
        (link, _cause(link, ends.get((link.destination, link.source))))
        for link in links
        if link.write_packets and link.duplicate_packets
    ]


def _cause(link: Link, answers: Link | None) -> CopyCause:
    """answers: the link that carries the receiver's ACKs and NAKs."""
    naks = 0 if answers is None else answers.nak_packets
    if naks:
        most = naks * COPIES_OF_NAK
        unexplained = link.doubled_packets and link.duplicate_packets > most
        return CopyCause.EITHER if unexplained else CopyCause.SENT_AGAIN
    if link.doubled_packets:
        return CopyCause.MIRRORED_TWICE
    heard = answers is not None and answers.ack_packets
    # A gap may be where a packet was lost that its receiver refused unseen.
    return CopyCause.MIRRORED_IN_PART if heard and not link.missing_packets else CopyCause.EITHER
