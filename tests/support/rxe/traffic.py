"""What two virtual machines write into each other's memory, under which misfortunes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

from support.rxe.guest import Completion, Endpoint, Machine
from support.rxe.network import Loss, losing

UNTOUCHED = b"\xa5"
"""What memory holds before anybody wrote to it (endpoint.c)."""
IP, TC = "/usr/bin/ip", "/usr/bin/tc"
"""By path: busybox' shell has programs of these names of its own."""
SLICE_PACKETS = 48
"""Every queue pair writes to a slice of its own, of so many times the path MTU."""
QUICK, PATIENT = 12, 16
"""Time without an answer until a retransmission, 4.096 us * 2**n: 17 ms, 0.27 s."""


@dataclass(frozen=True)
class Scenario:
    """One exchange between two machines; 0 is the one whose port is mirrored."""

    name: str
    version: Literal[4, 6] = 4
    """Of IP."""
    mtu: int = 1024
    pairs: int = 1
    psn: int = 0x3A0
    messages: int = 16
    """Per queue pair and direction."""
    immediates: Literal["none", "some", "all"] = "some"
    senders: tuple[int, ...] = (0,)
    losses: tuple[Loss, ...] = ()
    leaving: str = ""
    """netem at machine 0: before the mirror."""
    arriving: str = ""
    """netem at machine 1, on what comes in: after the mirror."""

    unseen: tuple[int, int] = (0, 0)
    """From which message of a pair on, and to before which, the mirror is off."""

    @property
    def slice_bytes(self) -> int:
        return SLICE_PACKETS * self.mtu

    @property
    def disturbed(self) -> bool:
        return bool(self.losses or self.leaving or self.arriving)


@dataclass(frozen=True)
class Write:
    """One RDMA write; `source` and `target` are offsets in the two memories."""

    pair: int
    source: int
    target: int
    length: int
    immediate: int | None


def writes_of(scenario: Scenario, sender: int) -> list[Write]:
    """Sizes on both sides of every edge; targets overlap, so that order decides what remains."""
    draw = random.Random(f"{scenario.name} {sender}")
    mtu, room = scenario.mtu, scenario.slice_bytes
    edges = (0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 77, 24 * mtu - 1)
    made = []
    for nth in range(scenario.messages):
        for pair in range(scenario.pairs):
            length = edges[(nth + pair) % len(edges)]
            if scenario.disturbed:
                length = draw.randrange(8 * mtu, 24 * mtu)
            with_word = {"none": False, "some": draw.random() < 0.5, "all": True}
            made.append(
                Write(
                    pair,
                    scenario.pairs * room + draw.randrange(scenario.pairs * room - length),
                    pair * room + draw.randrange(room - length),
                    length,
                    draw.randrange(1 << 32) if with_word[scenario.immediates] else None,
                )
            )
    return made


@dataclass(frozen=True)
class Outcome:
    """What became of one direction, as the two machines tell it."""

    writes: list[Write]
    receiver: Endpoint
    memory: bytes
    """What the receiver's memory holds in the end."""
    statuses: list[int]
    """Of the sender's completions, in order; 0 is success."""
    immediates: dict[int, list[int]]
    """{pair: what the receiver got, in order}."""


def carry_out(
    scenario: Scenario, machines: list[Machine], blind: Callable[[], AbstractContextManager[None]]
) -> list[Outcome]:
    """Does it, to the last acknowledgement; one outcome per sender. `blind`: the mirror is off."""
    area = scenario.pairs * scenario.slice_bytes
    ends = [
        Endpoint(
            machine,
            version=scenario.version,
            mtu=scenario.mtu,
            size=2 * area,
            pairs=scenario.pairs,
            psn=scenario.psn,
        )
        for machine in machines
    ]
    for nth, end in enumerate(ends):
        end.join(ends[1 - nth], QUICK if scenario.disturbed else PATIENT)
    plans = {sender: writes_of(scenario, sender) for sender in scenario.senders}
    for sender, writes in plans.items():
        ends[sender].fill(area, seed=scenario.psn + sender)
        for pair in range(scenario.pairs):
            count = sum(w.pair == pair and w.immediate is not None for w in writes)
            ends[1 - sender].expect(pair, count)
    turns = list(zip(*plans.values(), strict=True))
    first, stop = (scenario.pairs * nth for nth in scenario.unseen)
    done: dict[int, list[Completion]] = {nth: [] for nth in range(len(ends))}
    with _disturbed(scenario, machines):
        for part, mirrored in (
            (turns[:first], True),
            (turns[first:stop], False),
            (turns[stop:], True),
        ):
            with nullcontext() if mirrored or not part else blind():
                expected: Counter[int] = Counter()
                for turn in part:
                    for sender, write in zip(plans, turn, strict=True):
                        _post(ends[sender], ends[1 - sender], write)
                        expected[sender] += 1
                        expected[1 - sender] += write.immediate is not None
                for nth, end in enumerate(ends):
                    done[nth] += end.completions(expected[nth])
    outcomes = []
    for sender, writes in plans.items():
        came = [one for one in done[1 - sender] if one.came]
        outcomes.append(
            Outcome(
                writes,
                ends[1 - sender],
                ends[1 - sender].memory(area),
                [one.status for one in done[sender] if not one.came],
                {
                    pair: [one.immediate for one in came if one.pair == pair]
                    for pair in range(scenario.pairs)
                },
            )
        )
    return outcomes


def _post(sender: Endpoint, receiver: Endpoint, write: Write) -> None:
    words = f"from={write.source} bytes={write.length} "
    words += f"va={receiver.va + write.target} rkey={receiver.rkey}"
    sender.post(write.pair, words + ("" if write.immediate is None else f" imm={write.immediate}"))


@contextmanager
def _disturbed(scenario: Scenario, machines: list[Machine]) -> Iterator[None]:
    """As the scenario says, while the block runs."""
    with ExitStack() as stack:
        for loss in scenario.losses:
            stack.enter_context(losing(machines[0].cluster, loss))
        if scenario.leaving:
            machines[0].ask(f"run {TC} qdisc add dev eth0 root netem {scenario.leaving} 2>&1")
            stack.callback(machines[0].ask, f"run {TC} qdisc del dev eth0 root 2>&1")
        if scenario.arriving:
            lines = (
                f"{IP} link set ifb0 up",
                f"{TC} qdisc add dev eth0 clsact",
                f"{TC} filter add dev eth0 ingress protocol all u32 match u32 0 0"
                " action mirred egress redirect dev ifb0",
                f"{TC} qdisc add dev ifb0 root netem {scenario.arriving}",
            )
            machines[1].ask(f"run exec 2>&1; {' && '.join(lines)}")
            stack.callback(
                machines[1].ask,
                f"run exec 2>&1; {TC} qdisc del dev eth0 clsact && {TC} qdisc del dev ifb0 root",
            )
        yield
