"""What a reading leaves unread is said of all that was sent at its time or later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flowcheck.findings.catalog.collective_evidence import SIZE_AMID_UNREAD
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn.cuts.cut import Purse
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.search.communicators import Communicator, ring_and_p2p, rules_told
from flowcheck.wire.learn.search.several import find_communicators
from flowcheck.wire.learn.verdict.collect import collect

CAPTURE = Path(__file__).resolve().parents[1] / "data" / "two-ranks-ll.pcapng"


def marked(communicator: Communicator) -> list[bool]:
    found = collect(communicator, 0, []).collectives
    return [SIZE_AMID_UNREAD() in one.assumed for one in found]


def test_what_was_sent_beside_unread_sends_is_assumed() -> None:
    tape = read_capture_files([CAPTURE])
    told = sort_flows(tape.flows, tape.messages)
    streams, _ = ring_and_p2p(told.streams)
    [whole] = find_communicators(streams, told.grants, rules_told(told), Purse.for_sends(500))
    assert not whole.cuts.unread and not any(marked(whole))
    # As if the fifth collective, and what came behind it, had not been read.
    cuts = whole.cuts
    state = replace(cuts.state, positions=cuts.found[4].starts)
    left = replace(whole, cuts=replace(cuts, state=state, unread=1))
    assert marked(left) == [n >= 4 for n in range(len(cuts.found))]
