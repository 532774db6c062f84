"""Loss at the lab's monitor port: the hash, the frames that are told, and what a drill says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from flowcheck.findings.catalog.lost_steps import FLOWS_WENT_ON, STEP_LOST
from flowcheck.lab.job_run.digest_comparison import DigestComparison
from flowcheck.lab.mirror_loss.drop_program import GOLDEN, HEAD_BYTES, MASK, mixed
from flowcheck.lab.mirror_loss.dropped_frames import RECORD, decode_record
from flowcheck.lab.mirror_loss.loss_count import MirrorLossCount
from flowcheck.lab.restore_drill.drill_report import DrillOutcome, facts, statements
from flowcheck.lab.restore_drill.healed_elements import healed_elements
from flowcheck.lab.restore_drill.step_outcomes import followed_steps, step_outcomes
from flowcheck.ops.watch.state.chain_state import ChainState
from flowcheck.stages.job_state.heal_log import HealRecord
from flowcheck.step_numbers import Step


def test_the_hash_is_splitmix64() -> None:
    """Published outputs of seed 1234567 (rosettacode.org, Pseudo-random numbers/Splitmix64)."""
    outputs = [mixed(1234567 + n * GOLDEN & MASK) for n in range(1, 6)]
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("opcode", "extension"), [(6, 16), (7, 0), (8, 0), (9, 4), (10, 16), (11, 20), (17, 4), (0, 0)]
)
@pytest.mark.parametrize("pad", [0, 3])
def test_payload_of_a_dropped_packet(opcode: int, extension: int, pad: int) -> None:
    """Lengths of IB specification vol. 1, chapter 9; the checksum is the last four bytes."""
    bth = bytes([opcode, 0x40 | pad << 4, 0xFF, 0xFF, 0, 0, 1, 2, 0x80, 3, 4, 5])
    payload = 0 if opcode == 17 else 1000
    packet = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(dport=4791)
    frame = bytes(packet / Raw(bth + bytes(extension + payload + pad * bool(payload) + 4)))
    if not payload:
        frame = bytes(packet / Raw(bytes([opcode, 0x40]) + bth[2:] + bytes(extension + 4)))
    found = decode_record(RECORD.pack(len(frame), 9, frame[:HEAD_BYTES]))
    assert (found.copy, found.bytes, found.opcode) == (9, len(frame), opcode)
    assert (found.queue_pair, found.psn) == (0x0102, 0x030405)
    assert (found.destination, found.payload_bytes) == ("10.0.0.2", payload)


def test_other_and_hostile_frames_are_no_roce() -> None:
    tcp = bytes(Ether() / IP() / TCP(dport=4791) / Raw(bytes(40)))
    whole = bytes(Ether() / IP() / UDP(dport=4791) / Raw(bytes(40)))
    for frame in (tcp, b"", *(whole[:n] for n in range(len(whole) - 28))):
        found = decode_record(RECORD.pack(len(frame), 1, frame[:HEAD_BYTES]))
        assert (found.bytes, found.opcode, found.payload_bytes) == (len(frame), None, 0)
    nested = bytes.fromhex("00" * 12 + "0800" + "4500" + "00" * 7 + "2f" + "00" * 10 + "000088be")
    for length in range(HEAD_BYTES):
        decode_record(RECORD.pack(2**32 - 1, 1, (nested * 4)[:length]))


def outcome(tmp_path: Path) -> DrillOutcome:
    """A drill of six steps: 3 lacked bytes, 4 rests on it, 6 was not followed."""
    lines = [
        '{"step":1,"digest":"a","seconds":0}',
        '{"step":2,"digest":"b","seconds":0}',
        '{"step":3,"digest":"c","seconds":0,"missing_elements":7,"tainted":{"w":7}}',
        '{"step":4,"digest":"d","seconds":0,"tainted":{"w":7}}',
        '{"step":5,"digest":"e","seconds":0,"missing_elements":2,"tainted":{"w":7,"v":2}}',
        '{"step":6,"dig',
    ]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines))
    found = DrillOutcome(6, killed_at=Step(5), restored_step=Step(2), restored_equal=True)
    found.followed = followed_steps(step_outcomes(tmp_path / "steps.jsonl"), Step(6), None)
    found.mirror_loss = MirrorLossCount(0.5, 1, 10, 4, 3, 12, 0)
    found.comparison = DigestComparison(2, 3, (), (Step(6),))
    return found


def test_what_a_drill_with_a_loss_tells(tmp_path: Path) -> None:
    found = outcome(tmp_path)
    followed = found.followed
    assert followed is not None
    assert (followed.followed, followed.exact) == (5, 2)
    assert (followed.partial, followed.tainted, followed.not_followed) == ((3, 5), (3, 4, 5), (6,))
    assert followed.tainted_elements == 9
    count, steps, taint, missing = facts(found)
    assert "dropped 4 of 10 copies" in count
    assert "5 of 6 steps followed: 2 exact, 2 partial" in steps
    assert taint.startswith("9 elements tainted at the end") and "(6)" in missing
    assert all(holds for holds, _ in statements(found))


def test_a_step_called_exact_that_differs_fails_the_drill(tmp_path: Path) -> None:
    found = outcome(tmp_path)
    found.comparison = DigestComparison(1, 3, ((Step(2), "parameters"),), ())
    assert [holds for holds, _ in statements(found)] == [False, True]
    found = outcome(tmp_path)
    found.restored_equal = False
    assert [holds for holds, _ in statements(found)] == [True, False]


def test_a_drill_without_an_exact_step_shows_nothing(tmp_path: Path) -> None:
    found = outcome(tmp_path)
    found.followed = followed_steps({}, Step(6), None)
    found.comparison = DigestComparison(0, 3, (), ())
    (holds, says), *_ = statements(found)
    assert not holds and "no step exact" in says


def test_a_reason_that_another_one_gives_is_said_once() -> None:
    state = (Path(__file__).parents[1] / "data" / "watch" / "state-lost.json").read_bytes()
    job = msgspec.json.decode(state, type=ChainState).jobs[0]
    lost, reason = STEP_LOST(step=4, reason=FLOWS_WENT_ON()), FLOWS_WENT_ON()
    job = msgspec.structs.replace(job, lost_why=reason, why_not=(lost,))
    why = followed_steps({}, Step(1), job).why_not_followed
    assert lost in why and reason not in why


def test_what_was_healed_is_told_by_who_told_it(tmp_path: Path) -> None:
    """Step 3 lost 7 elements and 4 another 2; a save of step 4 heals 7, the hook the 2 and later
    9; an answer is refused meanwhile."""
    (tmp_path / "steps-before-healing.jsonl").write_text(
        '{"step":3,"digest":"c","seconds":0,"missing_elements":7,"tainted":{"w":7}}\n'
        '{"step":4,"digest":"d","seconds":0,"missing_elements":2,"tainted":{"w":9}}\n'
    )
    (tmp_path / "steps.jsonl").write_text(
        '{"step":3,"digest":"c","seconds":0,"missing_elements":7,"tainted":{"w":7}}\n'
        '{"step":4,"digest":"e","seconds":0}\n'
        '{"step":8,"digest":"f","seconds":0,"missing_elements":9}\n'
    )
    base = {"time_ns": 1, "request": "r", "source": "hook at 10.78.0.1:9470"}
    lines = (
        {"step": 4, "at": 4, "elements": 7, "left": 2, "source": "/saves/step-4.pt"},
        {"step": 4, "at": 4, "elements": 2, "asked_bytes": 100},
        {"step": 7, "at": 7, "asked_bytes": 30, "refused": {"code": "x", "arguments": {}}},
        {"step": 8, "at": 9, "elements": 9, "asked_bytes": 50},
    )
    heals = [msgspec.convert(base | line, HealRecord) for line in lines]
    followed = followed_steps(step_outcomes(tmp_path / "steps.jsonl"), Step(8), None)
    assert followed.partial == (3, 4, 8)
    healed = healed_elements(heals, followed.partial)
    assert (healed.by_hook, healed.by_saves, healed.answers) == (11, 7, 2)
    assert (healed.asked_bytes, healed.refused, healed.refused_bytes) == (150, 1, 30)
    assert healed.steps_until_exact == (1, 1)
    hook, saves, steps = healed.sentences(3)
    assert "11 elements in 2 answers: 150 bytes asked, 50 per" in hook and "(30 bytes)" in hook
    assert "7 elements" in saves and "2 times, 1 steps behind" in steps
