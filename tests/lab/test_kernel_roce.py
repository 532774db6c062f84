"""The kernel's own RoCE between two virtual machines, behind the lab's switch and its mirror.

What the chain's capture and parse stages put together of the mirrored frames equals what the
receiver's memory holds, as the receiver tells it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import compress

import pytest
from support.eal import why_not
from support.rxe.bench import Bench, bench
from support.rxe.image import missing
from support.rxe.mirror import Message, Mirror
from support.rxe.network import Loss
from support.rxe.traffic import UNTOUCHED, Outcome, Scenario, carry_out
from support.switches import SWITCHES

from flowcheck.plane.shared_memory.flow_table import PSN_ORIGIN, flow_key, psn_missing

WHY_NOT = why_not() or missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "nothing is missing"),
]
QUIET = [
    Scenario(f"v{version}-mtu{mtu}", version=version, mtu=mtu)
    for version in (4, 6)
    for mtu in (256, 512, 1024, 2048, 4096)
] + [
    Scenario("no-immediates", immediates="none", messages=32),
    Scenario("all-immediates", immediates="all", version=6, mtu=4096),
    Scenario("four-pairs", pairs=4),
    Scenario("four-pairs-both-ways", pairs=4, version=6, senders=(0, 1), mtu=2048),
    Scenario("psn-wraps", psn=0xFFFFF0),
    Scenario("psn-wraps-both-ways", psn=0xFFFFFF, version=6, mtu=4096, senders=(0, 1)),
]
DATA_LOST = (
    (Loss(0, "by", 4),),
    (Loss(1, "to", 4),),
    (Loss(0, "by", 3), Loss(1, "to", 3)),
)
# An acknowledgement stands for all before it: the last one of some pair must be among the lost.
ACKS_LOST = ((Loss(1, "by", 85),), (Loss(0, "to", 85),))
UNLUCKY = [
    Scenario(
        f"v{version}-mtu{mtu}-lost-{'-and-'.join(map(str, losses))}",
        version=version,
        mtu=mtu,
        losses=losses,
        pairs=1 if losses in DATA_LOST else 4,
        messages=16 if losses in DATA_LOST else 4,
    )
    for version, mtu in ((4, 1024), (6, 4096), (4, 256))
    for losses in DATA_LOST + ACKS_LOST
] + [
    Scenario("psn-wraps-lost-before", psn=0xFFFFC0, losses=DATA_LOST[0]),
    Scenario("psn-wraps-lost-after", psn=0xFFFFC0, losses=DATA_LOST[1], version=6),
    Scenario("both-ways-lost", losses=DATA_LOST[2], senders=(0, 1), pairs=2),
    Scenario("reordered-before", leaving="delay 4ms reorder 75% 50% limit 10000"),
    Scenario("reordered-after", arriving="delay 4ms reorder 75% 50% limit 10000", version=6),
    Scenario("doubled-before", leaving="duplicate 10% limit 10000", version=6),
    Scenario("doubled-after", arriving="duplicate 10% limit 10000"),
]
SENT_AGAIN = "lost", "reordered", "doubled-before"


@pytest.fixture(scope="module", params=SWITCHES)
def made(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(f"rxe{os.getpid()}", request.param) as up:
        yield up


def judge(seen: list[Message], outcome: Outcome, scenario: Scenario, mirror: Mirror) -> None:
    """One direction: every write as it was posted, and the memory it must have left."""
    flows = mirror.table.flows()
    receiver = outcome.receiver
    rebuilt = bytearray(UNTOUCHED * len(outcome.memory))
    known = bytearray(b"\1" * len(rebuilt))
    for pair, number in enumerate(receiver.pairs):
        posted = [write for write in outcome.writes if write.pair == pair]
        found = [
            message
            for message in seen
            if flow_key(flows[message.flow]).dest_qp == number
            and flow_key(flows[message.flow]).destination == receiver.address
        ]
        assert len({message.flow for message in found}) == 1, "another owner of the same pair"
        unseen, psn, left = 0, PSN_ORIGIN + scenario.psn, iter(found)
        for nth, write in enumerate(posted):
            place = slice(write.target, write.target + write.length)
            packets = max(1, -(-write.length // scenario.mtu))
            shown = not scenario.unseen[0] <= nth < scenario.unseen[1]
            known[place] = bytes([shown]) * write.length
            if shown:
                message = next(left)
                assert (message.first_psn, message.rkey) == (psn, receiver.rkey)
                assert message.va - receiver.va == write.target
                assert (message.length, message.immediate) == (write.length, write.immediate)
                assert message.whole and message.placed == message.length
                rebuilt[place] = message.data
            else:
                unseen += packets
            psn += packets
        assert next(left, None) is None, "a message that nobody sent"
        assert psn_missing(flows[found[0].flow]) == unseen
        words = [w.immediate for w in posted if w.immediate is not None]
        assert outcome.immediates[pair] == words
    assert rebuilt.count(UNTOUCHED) < len(rebuilt), "nothing was written"
    mine, held = (bytes(compress(memory, known)) for memory in (rebuilt, outcome.memory))
    assert mine == held


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", QUIET + UNLUCKY, ids=lambda scenario: scenario.name)
def test_the_mirror_tells_the_receivers_memory(made: Bench, scenario: Scenario) -> None:
    more, late = compared(made, scenario)
    assert not more["incarnations"] and not more["refused_messages"]
    if any(word in scenario.name for word in SENT_AGAIN):
        assert more["duplicate_packets"], "nothing was sent again"
    if scenario.name == "reordered-before":
        assert late, "nothing came late"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("made", SWITCHES[:1], indirect=True)
def test_what_the_mirror_did_not_show_is_missing_and_nothing_else(made: Bench) -> None:
    """Only a bridge's mirror can be taken off and put back."""
    compared(made, Scenario("unseen", messages=24, unseen=(7, 15), psn=0xFFFFC0))


def compared(made: Bench, scenario: Scenario) -> tuple[dict[str, int], int]:
    """Carries it out and judges it; the parser's counters of it, and the packets that came late."""
    mirror = made.mirror
    mirror.caught_up()
    mirror.forget()
    lost, known, before = mirror.lost, mirror.table.newest_message, mirror.counters()
    outcomes = carry_out(scenario, made.machines, mirror.off)
    for outcome in outcomes:
        assert not any(outcome.statuses) and len(outcome.statuses) == len(outcome.writes)
    mirror.caught_up()
    assert mirror.lost == lost, "the mirror's frames did not all reach a slot"
    seen = mirror.messages(known)
    for outcome in outcomes:
        judge(seen, outcome, scenario, mirror)
    more = {name: count - before[name] for name, count in mirror.counters().items()}
    for name in ("icrc_bad", "malformed", "doubtful", "refused", "snapped", "roce_other"):
        assert not more[f"{name}_frames"], name
    return more, mirror.late_packets()
