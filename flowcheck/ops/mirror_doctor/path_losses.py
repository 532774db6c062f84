"""How many packets were lost on the way to a port: those that are missing, without those whose
place a frame may have that came cut or damaged. Pure."""

from __future__ import annotations

import msgspec

from flowcheck.ops.mirror_doctor.port_figures import Link, PortFigures


class PathLosses(msgspec.Struct, frozen=True, kw_only=True):
    """The missing packets of one port by where they went."""

    missing: int
    lost: int
    """Packets that no frame brought, at least."""
    of_links: dict[tuple[str, str], int]
    """{(source, destination): lost packets}, without zeros; at most so many, and together more than
    `lost`, where frames came of which no figure says whose they were."""

    @property
    def damaged(self) -> int:
        """The other missing packets: their places may be those of frames that came cut or damaged.
        At most: such a frame may also be a packet that is not missing, or no write."""
        return self.missing - self.lost

    @property
    def of_links_is_sure(self) -> bool:
        """`of_links` says how many each link lost, not only how many at most."""
        return len(self.of_links) <= 1 or sum(self.of_links.values()) == self.lost


def path_losses(port: PortFigures) -> PathLosses:
    """Frames with a wrong ICRC are taken off the missing packets of their own queue pair; cut ones,
    and damaged ones of no known queue pair, off those of the port."""
    left = {_ends(link): link.missing_packets - link.damaged_packets for link in port.links}
    wrong = port.verdicts.get("icrc_bad", 0) - sum(link.icrc_bad_frames for link in port.links)
    lost = max(0, sum(left.values()) - port.cut_frames - max(0, wrong))
    return PathLosses(
        missing=port.missing_packets,
        lost=lost,
        of_links={ends: min(count, lost) for ends, count in left.items() if count and lost},
    )


def _ends(link: Link) -> tuple[str, str]:
    return link.source, link.destination
