"""Real captures whole: every tensor, every flow and what a loss cost, as the truth files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.captured import (
    NAMES,
    Truth,
)

from flowcheck.findings.catalog.collective_evidence import END_BY_CONTENT
from flowcheck.findings.catalog.connections import NUMBERED_BY_PSN
from flowcheck.ops.analysis.analyze_command import as_dict, run
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_and_the_weights_are_what_the_truth_says(
    name: str, captures: Path, truth: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = Truth(truth, name)
    assert run([captures / f"{name}.pcapng"], as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    found = [c for c in told["collectives"] if c["kind"] == "all_reduce"]
    assert [c["bytes"] for c in found] == [a["count"] * 4 for a in known.all_reduces]
    assert [c["coverage"] for c in found] == [a["coverage"] for a in known.all_reduces]
    assert [c["sha256"] for c in found] == [a["sha256_le"] for a in known.all_reduces]
    assert all(c["missing"] == [] for c in found)
    assert told["frames"]["total"] == sum(known.values["frame_census"].values())
    assert (
        sum(n for verdict, n in told["frames"].items() if verdict != "total")
        == (told["frames"]["total"])
    )
    assert told["frames"]["unknown"] == 0
    broadcast = known.values.get("ddp_init_broadcast")
    if broadcast is None:
        assert told["weights"] is None
    else:
        assert told["weights"]["sha256"] == broadcast["sha256_le"]
        assert told["weights"]["bytes"] == broadcast["count"] * 4
        assert told["weights"]["shapes"] == [[1, broadcast["count"]]]
    indices = [c["index"] for c in told["collectives"]]
    assert indices == list(range(len(indices)))


@pytest.mark.parametrize("name", NAMES)
def test_what_carried_a_collective_is_named_in_parts(
    name: str, captures: Path, truth: Path
) -> None:
    """The truth knows the flows with data; the short names are made by other code."""
    data = {
        (f["src_ip"], f["dst_ip"], f["dst_qpn"])
        for f in Truth(truth, name).values["flows"]
        if f["data_sends"]
    }
    told = as_dict({}, _reading(read_capture_files([captures / f"{name}.pcapng"])))
    parts = [(c["sources"], one) for c in told["collectives"] for one in c["carried_by"]]
    assert {one["kind"] for _, one in parts} <= {"connection", "point_to_point"}
    links = [one for _, one in parts if one["kind"] == "connection"]
    assert links
    assert {(one["src"], one["dst"], one["dest_qp"]) for one in links} <= data
    for one in told["collectives"]:
        named = {
            f"{_last(part['src'])}->{_last(part['dst'])} {part['protocol']}"
            if part["kind"] == "connection"
            else "p2p (inferred)"
            for part in one["carried_by"]
        }
        assert named == set(one["sources"])


def _last(address: str) -> str:
    return address.replace(".", ":").rsplit(":", 1)[-1][-4:]


@pytest.mark.parametrize("name", NAMES)
def test_flows_have_the_roles_peers_and_losses_of_the_truth(
    name: str, captures: Path, truth: Path
) -> None:
    known = Truth(truth, name)
    tape = read_capture_files([captures / f"{name}.pcapng"])
    flows = {(f["dst"], f["dest_qp"]): f for f in as_dict({}, _reading(tape))["flows"]}
    data = {(f["dst_ip"], f["dst_qpn"]): f for f in known.values["flows"] if f["data_sends"]}
    for key, expected in data.items():
        flow = flows[key]
        assert flow["role"] == "data"
        assert flow["protocol"].lower() == expected["role"].split(":")[1].lower()
        assert flow["peer_dest_qp"] == expected["peer_qpn"]
        assert flow["messages"] == expected["data_sends"]
        assert not flow["problems"]
        assert NUMBERED_BY_PSN.code in [evidence["code"] for evidence in flow["numbered_by"]]
    grants = {(f["dst_ip"], f["dst_qpn"]) for f in known.values["flows"] if f["cts_sent"]}
    assert {key for key, f in flows.items() if f["role"] == "cts"} == grants
    lost = known.values["psn_summary"]["missing_packets_incl_message_tails"]
    assert sum(f["psn_missing"] for f in flows.values()) == lost


def _reading(tape: object) -> Reading:
    return read_stream(tape.flows, tape.messages)  # type: ignore[attr-defined]


def test_addstep_names_the_nine_packets_its_last_message_lost(captures: Path) -> None:
    tape = read_capture_files([captures / "allreduce_addstep.pcapng"])
    reading = _reading(tape)
    cut = [f.seen for f in reading.flows if f.seen.psn_missing]
    assert [f.psn_missing for f in cut] == [9]
    assert cut[0].key.dest_qp == 0x825
    assert [c.complete for c in reading.collectives] == [True]


def test_an_end_that_only_the_last_line_tells_is_assumed_and_one_of_a_plan_is_not(
    captures: Path,
) -> None:
    """The patched trainer of one capture sent no start-up; the other one's names every size."""
    for name, assumed in (("allreduce_addstep", True), ("iter_40000_p2p_iter10", False)):
        tape = read_capture_files([captures / f"{name}.pcapng"])
        reading = read_stream(tape.flows, tape.messages)
        reduces = [c for c in reading.collectives if c.kind == "all_reduce"]
        assert reduces
        assert all((END_BY_CONTENT() in c.assumed) is assumed for c in reduces)
