"""What the figures of ports mean: one line for each question, and what has to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from flowcheck.findings.catalog import capture_file_problems
from flowcheck.findings.catalog import mirror_port as told
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_doctor.copy_causes import CopyCause, copy_causes
from flowcheck.ops.mirror_doctor.load_series import LINE_SHARE, Load
from flowcheck.ops.mirror_doctor.loss_runs import joined_runs
from flowcheck.ops.mirror_doctor.named_ports import PortKind
from flowcheck.ops.mirror_doctor.nic_counters import ARRIVED, damaged_counters, lost_counters
from flowcheck.ops.mirror_doctor.path_losses import PathLosses, path_losses
from flowcheck.ops.mirror_doctor.port_figures import (
    WRITES,
    Host,
    Link,
    PortFigures,
    hosts_of,
    joined_links,
)
from flowcheck.wire.traffic.non_nccl_traffic import non_nccl_reasons

Level = Literal["ok", "warn", "fail"]
NAMED_MOST = 4
"""Links or hosts that a sentence names; the JSON has all. A choice of layout."""
KIND_WORDS = {"ack": "acks", "nak": "NAKs", "cnp": "CNPs", "icrc_bad": "with a wrong ICRC"}
"""Words of verdicts that are not their own."""


class PortQuestion(StrEnum):
    """What a line is about; in the order of the report."""

    CHAIN = "chain"
    FRAMES = "frames"
    HALVES = "halves"
    DUPLICATES = "duplicates"
    ENCAPSULATION = "encapsulation"
    TRUNCATION = "truncation"
    ICRC = "icrc"
    LOSS = "loss"
    LOSS_RUNS = "loss_runs"
    LOST_HERE = "lost_here"
    LOAD = "load"
    BURST = "burst"
    SECOND_MIRROR = "second_mirror"


class PortCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report. `found` has its cause and its remedy."""

    check: PortQuestion
    level: Level
    found: Finding


def checks_of(port: PortFigures, *, seconds: float) -> list[PortCheck]:
    """All lines of one port but those that all ports answer together."""
    found = [*_chain(port, seconds), *_frames(port, seconds)]
    if not port.frames:
        return found
    found += _truncation(port)
    if port.cut_frames < sum(port.verdicts.values()):
        found += [*_duplicates(port), *_icrc(port), *_loss(port), *_loss_runs(port)]
    found += [*_encapsulation(port), *_lost_here(port), *_load(port), *_burst(port)]
    return sorted(found, key=lambda one: [*PortQuestion].index(one.check))


def checks_of_all(ports: Sequence[PortFigures]) -> list[PortCheck]:
    """What all ports together show: both halves of the ring; links that several of them have."""
    found = _halves(joined_links([*ports]))
    for names, links in _on_several(ports).items():
        what = told.SECOND_MIRROR(links=_named(links), ports=names)
        found.append(_line(PortQuestion.SECOND_MIRROR, "ok", what))
    return found


def _line(check: PortQuestion, level: Level, found: Finding) -> PortCheck:
    return PortCheck(check=check, level=level, found=found)


def _chain(port: PortFigures, seconds: float) -> list[PortCheck]:
    if port.chain is None:
        return []
    if port.from_chain:
        what = told.CHAIN_ALONE(run=port.chain, seconds=round(seconds, 1))
        return [_line(PortQuestion.CHAIN, "ok", what)]
    if not port.chain_losses:
        return [_line(PortQuestion.CHAIN, "ok", told.CHAIN_BESIDE(port.chain))]
    what = told.CHAIN_BESIDE_LOST(run=port.chain, counters=_counters(port.chain_losses))
    return [_line(PortQuestion.CHAIN, "warn", what)]


def _counters(counters: dict[str, int]) -> tuple[Finding, ...]:
    return tuple(told.COUNTER(name=name, frames=value) for name, value in counters.items())


def _frames(port: PortFigures, seconds: float) -> list[PortCheck]:
    if port.gone:
        return [_line(PortQuestion.FRAMES, "fail", told.IS_GONE())]
    if not port.frames:
        return [_line(PortQuestion.FRAMES, "fail", _why_no_frame(port, seconds))]
    kinds = kinds_of(port)
    if port.writes or port.cut_frames or port.verdicts.get("icrc_bad"):
        what = told.FRAMES_SEEN(frames=port.frames, kinds=kinds)
        return [_line(PortQuestion.FRAMES, "ok", what)]
    reasons = non_nccl_reasons(port.verdicts, goes_on=port.kind != PortKind.FILE)
    what = told.NO_WRITES(frames=port.frames, kinds=kinds)
    return [_line(PortQuestion.FRAMES, "fail", one) for one in (what, *reasons[:1])]


def kinds_of(port: PortFigures) -> tuple[Finding, ...]:
    """The frames by kind, most first: all writes as one, else by verdict."""
    counts: Counter[str] = Counter()
    for verdict, frames in port.verdicts.items():
        word = "writes" if verdict in WRITES else KIND_WORDS.get(verdict, verdict)
        counts[word.replace("_", " ")] += frames
    return tuple(told.KIND(kind=kind, frames=frames) for kind, frames in counts.most_common())


def _why_no_frame(port: PortFigures, seconds: float) -> Finding:
    if port.kind == PortKind.FILE:
        return told.FILE_WITHOUT_FRAMES()
    if port.admin_up is False:
        return told.PORT_IS_DOWN()
    if port.link_up is False:
        return told.NO_LINK()
    counters = {
        name: value
        for name, value in port.interface_counters.items()
        if name in ARRIVED or lost_counters({name: value})
    }
    shown_s = round(seconds, 1)
    if counters:
        return told.NO_FRAME_BUT_COUNTED(seconds=shown_s, counters=_counters(counters))
    return (told.NO_FRAME if port.link_up else told.NO_FRAME_LINK_UNKNOWN)(shown_s)


def _link_words(link: Link) -> Finding:
    return told.LINK(source=link.source, destination=link.destination)


def _named(links: Iterable[Link]) -> tuple[Finding, ...]:
    return tuple(map(_link_words, links))[:NAMED_MOST]


def _halves(links: list[Link]) -> list[PortCheck]:
    """Links are those of all ports. A host of which both is seen shows two links of its ring: all
    results of it pass one of them."""
    data = [link for link in links if link.data_packets]
    writes = sum(link.write_packets for link in links)
    if not writes:
        return []
    if not data:
        return [_line(PortQuestion.HALVES, "warn", told.NO_DATA_YET(writes))]
    whole = [one.address for one in hosts_of(data) if one.sends_bytes and one.receives_bytes]
    if whole:
        what = told.BOTH_HALVES(tuple(whole[:NAMED_MOST]))
        return [_line(PortQuestion.HALVES, "ok", what)]
    if len(data) > 1:
        return [_line(PortQuestion.HALVES, "warn", told.SEVERAL_HALVES(_named(data)))]
    only = data[0]
    what = told.ONE_HALF(
        source=only.source,
        destination=only.destination,
        bytes=only.data_bytes,
        granted=_granted(only, links),
    )
    return [_line(PortQuestion.HALVES, "fail", what)]


def _granted(only: Link, links: list[Link]) -> tuple[Finding, ...]:
    """The sender granted buffers to somebody: data came to it that no port shows."""
    hosts: dict[str, Host] = {host.address: host for host in hosts_of(links)}
    grants = hosts[only.source].grants_packets
    return (told.GRANTED_UNSEEN(host=only.source, packets=grants),) if grants else ()


def _on_several(ports: Sequence[PortFigures]) -> dict[tuple[str, ...], list[Link]]:
    """{ports: links whose data all of them show}."""
    seen: dict[tuple[str, str], list[PortFigures]] = {}
    for port in ports:
        for link in port.links:
            if link.data_packets:
                seen.setdefault((link.source, link.destination), []).append(port)
    found: dict[tuple[str, ...], list[Link]] = {}
    for at, several in seen.items():
        if len(several) > 1:
            link = next(one for one in several[0].links if (one.source, one.destination) == at)
            found.setdefault(tuple(port.port for port in several), []).append(link)
    return found


def _duplicates(port: PortFigures) -> list[PortCheck]:
    found: dict[CopyCause, list[Link]] = {}
    for link, cause in copy_causes(port.links):
        found.setdefault(cause, []).append(link)
    lines = [_copies(port, cause, found[cause]) for cause in CopyCause if cause in found]
    if lines or not any(link.write_packets for link in port.links):
        return lines
    return [_line(PortQuestion.DUPLICATES, "ok", told.NO_DUPLICATES())]


def _copies(port: PortFigures, cause: CopyCause, links: list[Link]) -> PortCheck:
    """links: those whose copies have this cause."""
    named, packets = _named(links), sum(link.duplicate_packets for link in links)
    of = sum(link.write_packets for link in links)
    back = {(link.destination, link.source) for link in links}
    naks = sum(one.nak_packets for one in port.links if (one.source, one.destination) in back)
    match cause:
        case CopyCause.SENT_AGAIN:
            what = told.SENT_AGAIN(packets=packets, of=of, links=named, naks=naks)
            return _line(PortQuestion.DUPLICATES, "ok", what)
        case CopyCause.MIRRORED_TWICE:
            what = told.MIRRORED_TWICE(links=named, packets=packets, of=of)
            return _line(PortQuestion.DUPLICATES, "fail", what)
        case CopyCause.MIRRORED_IN_PART:
            what = told.MIRRORED_IN_PART(packets=packets, of=of, links=named)
            return _line(PortQuestion.DUPLICATES, "warn", what)
        case CopyCause.EITHER:
            what = told.CAME_AGAIN(packets=packets, of=of, links=named, naks=naks)
            return _line(PortQuestion.DUPLICATES, "warn", what)


def _encapsulation(port: PortFigures) -> list[PortCheck]:
    kinds = [
        told.TUNNELLED(kind=" and ".join(port.tunnels) or "a tunnel", frames=n)
        for n in (port.encapsulated_frames,)
        if n
    ]
    if port.vlan_frames and port.vlans:
        kinds.append(told.TAGGED(vlans=tuple(port.vlans[:NAMED_MOST]), frames=port.vlan_frames))
    elif port.vlan_frames:
        kinds.append(told.TAGGED_ANY(port.vlan_frames))
    what = told.ENCAPSULATED(tuple(kinds)) if kinds else told.PLAIN()
    return [_line(PortQuestion.ENCAPSULATION, "ok", what)]


def _truncation(port: PortFigures) -> list[PortCheck]:
    if not port.cut_frames:
        return [_line(PortQuestion.TRUNCATION, "ok", told.WHOLE())]
    if port.cut_by_capture:
        what = capture_file_problems.SNAPPED(port.cut_frames)
        return [_line(PortQuestion.TRUNCATION, "fail", what)]
    of = sum(port.verdicts.values())
    what = told.TRUNCATED(frames=min(port.cut_frames, of), of=of, bytes=port.cut_bytes)
    return [_line(PortQuestion.TRUNCATION, "fail", what)]


def _icrc(port: PortFigures) -> list[PortCheck]:
    wrong, checked = port.verdicts.get("icrc_bad", 0), port.icrc_checked
    if not checked:
        return []
    if port.icrc_every == 0:
        return [_line(PortQuestion.ICRC, "fail", told.ICRC_NONE_RIGHT(checked))]
    if wrong:
        what = told.ICRC_SOME_WRONG(frames=wrong, of=checked)
        return [_line(PortQuestion.ICRC, "fail", what)]
    right = told.ICRC_RIGHT(checked)
    if port.icrc_every > 1:
        right = told.ICRC_RIGHT_SAMPLED(frames=checked, every=port.icrc_every)
    return [_line(PortQuestion.ICRC, "ok", right)]


def _loss(port: PortFigures) -> list[PortCheck]:
    found = []
    if any(link.write_packets for link in port.links):
        level, what = _lost_on_the_way(port, path_losses(port))
        found.append(_line(PortQuestion.LOSS, level, what))
    if port.flow_table_full_packets:
        full = told.TABLE_FULL(port.flow_table_full_packets)
        found.append(_line(PortQuestion.LOSS, "warn", full))
    return found


def _lost_on_the_way(port: PortFigures, losses: PathLosses) -> tuple[Level, Finding]:
    if not losses.missing:
        return "ok", told.NOTHING_MISSING()
    if not losses.lost:
        return "ok", told.CAME_DAMAGED(losses.missing)
    beside = (told.BESIDE_DAMAGED(losses.damaged),) if losses.damaged else ()
    if port.dropped_here:
        what = told.LOST_UNCERTAIN(
            packets=losses.lost,
            dropped=port.dropped_here,
            least=max(0, losses.lost - port.dropped_here),
            beside=beside,
        )
        return "fail" if losses.lost > port.dropped_here else "warn", what
    writes = sum(link.write_packets for link in port.links)
    sent = max(writes - port.duplicate_packets + losses.missing, losses.missing)
    of_link = told.LOST_OF_LINK if losses.of_links_is_sure else told.LOST_OF_LINK_AT_MOST
    links = [
        of_link(packets=packets, source=source, destination=destination)
        for (source, destination), packets in losses.of_links.items()
    ]
    return "fail", told.LOST_BEFORE(
        packets=losses.lost,
        percent=round(100 * losses.lost / sent, 3),
        links=tuple(links[:NAMED_MOST]),
        beside=beside,
    )


def _loss_runs(port: PortFigures) -> list[PortCheck]:
    """How long bursts of losses were; not where frames that were dropped here lengthen them."""
    losses, runs = path_losses(port), joined_runs(link.loss_runs for link in port.links)
    if not losses.lost or port.dropped_here or not runs.runs:
        return []
    unlisted, damaged = runs.unlisted_packets, losses.damaged
    what = told.LOST_IN_A_ROW(
        mean=round(runs.mean, 3),
        longest=runs.longest,
        gaps=runs.runs,
        unlisted=(told.GAPS_UNLISTED(unlisted),) if unlisted else (),
        damaged=(told.GAPS_OF_DAMAGED(damaged),) if damaged else (),
    )
    return [_line(PortQuestion.LOSS_RUNS, "ok", what)]


def _lost_here(port: PortFigures) -> list[PortCheck]:
    found = []
    in_nic = lost_counters(port.interface_counters)
    losses = port.chain_losses if port.from_chain else port.capture_losses
    in_nic |= {name: n for name, n in losses.items() if name.startswith("nic_")}
    if in_nic:
        what = told.LOST_IN_NIC(_counters(in_nic))
        found.append(_line(PortQuestion.LOST_HERE, "fail", what))
    if damaged := damaged_counters(port.interface_counters):
        what = told.DAMAGED(_counters(damaged))
        found.append(_line(PortQuestion.LOST_HERE, "fail", what))
    if port.capture_losses:
        dropped = told.DROPPED_HERE(counters=_counters(port.capture_losses), figures=port.sampled)
        found.append(_line(PortQuestion.LOST_HERE, "warn", dropped))
    elif port.sampled:
        found.append(_line(PortQuestion.LOST_HERE, "ok", told.ICRC_SAMPLED(port.sampled)))
    return found


def _load(port: PortFigures) -> list[PortCheck]:
    load = port.load
    if load is None:
        return []
    if load.peak_1ms_gbps is None:
        what = told.LOAD_OF_CHAIN(mean=load.mean_gbps, long=load.peak_100ms_gbps)
        return [_line(PortQuestion.LOAD, "ok", what)]
    if not port.speed_mbps:
        what = told.LOAD_OF_UNKNOWN(
            mean=load.mean_gbps, long=load.peak_100ms_gbps, short=load.peak_1ms_gbps
        )
        return [_line(PortQuestion.LOAD, "ok", what)]
    speed = port.speed_mbps / 1000
    found = told.LOAD(
        mean=load.mean_gbps,
        long=min(load.peak_100ms_gbps, speed),
        short=min(load.peak_1ms_gbps, speed),  # stamps are taken in bursts
        speed=speed,
    )
    lines = [_line(PortQuestion.LOAD, "ok", found)]
    if load.peak_100ms_gbps >= LINE_SHARE * speed:
        level: Level = "fail" if path_losses(port).lost > port.dropped_here else "warn"
        what = told.AT_LIMIT(long=min(load.peak_100ms_gbps, speed), speed=speed)
        lines.append(_line(PortQuestion.LOAD, level, what))
    return lines


def _burst(port: PortFigures) -> list[PortCheck]:
    load = port.load
    if load is None or load.backlog_bytes is None or not load.bytes:
        return []
    what = told.BURST(
        bytes=load.busy_run_bytes,
        ms=load.busy_run_ms,
        backlog=load.backlog_bytes,
        slots=_slots(load, port.frames),
    )
    lines = [_line(PortQuestion.BURST, "ok", what)]
    if load.line_run_bytes:
        run = told.LINE_RUN(bytes=load.line_run_bytes, ms=load.line_run_ms)
        lines.append(_line(PortQuestion.BURST, "ok", run))
    return lines


def _slots(load: Load, frames: int) -> int:
    """Slots that the backlog takes, in frames of the mean length."""
    return -(-(load.backlog_bytes or 0) * frames // max(1, load.bytes))
