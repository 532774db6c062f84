"""A fleet without Ray: chains are kept by hand here, as the actors keep them. What the machines
say, which chains are started and adopted, what a frozen and a dead machine cost. Judged by torch's
own optimizer and by the process table."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from support.chain import LIMIT_S, flowcheck, wait_until
from support.fleets import STEPS, SmallFleet, small_fleet

from flowcheck.findings.catalog import fleet_running as told
from flowcheck.fleet.node_report import NodeReport
from flowcheck.ops.fleet.chain_keeping import ChainKeeping, chain_supervisor
from flowcheck.ops.fleet.checked_fleet import checked_fleet
from flowcheck.ops.fleet.fleet_place import fleet_state_of
from flowcheck.ops.fleet.fleet_status_command import view_of
from flowcheck.ops.fleet.keeper_client import LIMIT_S as ASKED_S
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.stages.run_directory.run_dir import RunDir


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path) as made:
        yield made


def keeping(fleet: SmallFleet, node: str, chain: str) -> tuple[NodeFolder, ChainKeeping]:
    folder = fleet.node(node)
    folder.take(fleet.state())
    return folder, ChainKeeping(folder, chain)


@pytest.mark.timeout(400)
def test_machines_answer_without_ray_and_a_dead_ones_step_is_given_by_another(
    fleet: SmallFleet,
) -> None:
    folders = {}
    for node, chain in (("a", "ring0"), ("b", "ring0.b")):
        folders[node], first = keeping(fleet, node, chain)
        assert first.look() is None, "it is started"
        pid = fleet.run(chain).stage_pids()["supervisor"]
        parents = Path(f"/proc/{pid}/status").read_text()
        assert "PPid:\t1\n" in parents, "nobody's child"
        _, other = keeping(fleet, node, chain)
        assert other.look() is None and first.look() is None
        record = folders[node].record(chain)
        assert (record.starts, fleet.run(chain).stage_pids()["supervisor"]) == (1, pid)
    keepers = {node: fleet.keeper(node) for node in "ab"}
    fleet.reaches("ring0")
    fleet.reaches("ring0.b")
    code, view = fleet.status()
    assert (code, view["common_step"], view["notes"]) == (0, STEPS, [])
    drilled(fleet)

    keepers["b"].process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    code, view = fleet.status()
    assert code == 1 and view["nodes"]["b"]["code"] == told.KEEPER_SILENT.code
    assert time.monotonic() - began_s < ASKED_S + 20, "the process's own start, on a busy machine"
    keepers["b"].process.send_signal(signal.SIGCONT)

    keepers["a"].process.kill()
    fleet.chain_dies("ring0")
    aside = fleet.folder / "a-is-gone"
    folders["a"].root.rename(aside)
    code, view = fleet.status()
    assert code == 1 and view["nodes"]["a"]["code"] == told.KEEPER_GONE.code
    [note] = view["notes"]
    assert note["code"] == told.STEP_ELSEWHERE.code
    assert note["arguments"] == {"chain": "ring0", "node": "b", "step": STEPS}
    fleet.restored_is_torchs()

    keepers["b"].process.kill()
    fleet.restored_is_torchs()  # without a keeper too: the chain itself serves its steps
    fleet.keeper("b")
    wait_until(lambda: fleet.chain("ring0.b") is not None, LIMIT_S, "another keeper")

    aside.rename(folders["a"].root)
    state = folders["b"].file
    code, out, err = flowcheck("fleet", "down", state, "--wait", "60", "--json")
    assert code == 1 and told.KEEPER_GONE.code in out, out + err
    assert fleet.run("ring0.b").stage_pids() == {}
    _, again = keeping(fleet, "b", "ring0.b")
    assert again.look() == told.STOPPED()

    # The machine that was away hears of it, and starts nothing.
    assert folders["a"].read().wanted
    fleet.keeper("a")
    wait_until(lambda: not folders["a"].read().wanted, LIMIT_S, "the news of the stop")
    assert folders["a"].read().generation == folders["b"].read().generation == 2


def drilled(fleet: SmallFleet) -> None:
    """`fleet drill` fetches from both, tells a damaged file, and leaves nothing."""
    before = set(fleet.folder.glob("*"))

    def drill() -> tuple[int, Any]:
        code, out, err = flowcheck("fleet", "drill", fleet.file, "--json")
        assert out, err
        return code, json.loads(out)

    code, done = drill()
    assert code == 0 and done["step"] == STEPS, done
    ways = {one["chain"]: one for one in done["ways"]}
    assert {name: one["node"] for name, one in ways.items()} == {"ring0": "a", "ring0.b": "b"}
    assert done["fastest"]["ring0"] in ways and done["seconds"] > 0
    [staged] = (fleet.run("ring0.b").root / "serve").glob("step-*")
    size = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
    assert ways["ring0.b"]["bytes"] == size
    assert [one["survive"] for one in done["odds"]] == [1.0, 0.0], "one of two, both of two"
    tensors = next(path for path in staged.rglob("*.safetensors") if path.stat().st_size > 1000)
    with tensors.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    code, done = drill()
    whole = {one["chain"]: one["why_not"] is None for one in done["ways"]}
    assert (code, whole) == (1, {"ring0": True, "ring0.b": False})
    assert [one["survive"] for one in done["odds"]] == [0.5, 0.0]
    assert done["fastest"] == {"ring0": "ring0"}
    shutil.rmtree(staged)  # it is written anew
    assert set(fleet.folder.glob("*")) == before


@pytest.mark.timeout(200)
def test_a_killed_chain_is_started_again_and_one_that_was_stopped_is_not(fleet: SmallFleet) -> None:
    folder, keeps = keeping(fleet, "a", "ring0")
    assert keeps.look() is None
    [chain] = folder.read().on("a")
    first = chain_supervisor(chain)
    assert first is not None
    for pid in fleet.run("ring0").stage_pids().values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not fleet.run("ring0").stage_pids(), LIMIT_S, "the end")
    wait_until(lambda: keeps.look() is None, LIMIT_S, "another start")
    assert folder.record("ring0").starts == 2
    assert chain_supervisor(chain) not in (None, first)
    code, out, err = flowcheck("down", "--run", chain.run)
    assert code == 0, out + err
    why = keeps.look()
    assert why is not None and why.is_any_of(told.CHAIN_ENDED)
    assert keeps.look() == why and chain_supervisor(chain) is None
    # A new generation starts it.
    folder.take(fleet.state(2))
    wait_until(lambda: keeps.look() is None, LIMIT_S, "the start of the next generation")
    assert folder.record("ring0").starts == 3


@pytest.mark.timeout(200)
def test_a_machine_that_was_away_ends_what_the_newest_state_moved(
    fleet: SmallFleet,
) -> None:
    """Generation 2 has the chain on b: a hears of it from b's keeper, and has no text of it."""
    folder, keeps = keeping(fleet, "a", "ring0")
    assert keeps.look() is None
    moved = fleet.file.with_name("moved.toml")
    moved.write_text(fleet.file.read_text().replace('node = "a"', 'node = "b"'))
    state = fleet_state_of(checked_fleet(moved, 2), 2)
    fleet.node("b").take(state.for_node("b"))
    [text] = [own.job for own in fleet.node("b").read().chains if own.node == "a"]
    assert text.startswith("sha256:") and state.for_node("b").stated_digest == state.stated_digest
    fleet.keeper("a")
    fleet.keeper("b")
    wait_until(lambda: not fleet.run("ring0").stage_pids(), LIMIT_S, "the end of the old chain")
    why = keeps.look()
    assert why is not None and why.is_any_of(told.NEWER_KNOWN, told.CHAIN_ENDED)
    assert folder.record("ring0").starts == 1


@pytest.mark.timeout(300)
def test_of_two_states_of_one_number_one_holds_and_a_changed_file_stops_it(
    fleet: SmallFleet,
) -> None:
    """Started twice at one instant, by two files: the chain is on a by the one, on b by the other.
    Then a third file, which has b alone, stops what both machines run."""
    moved = fleet.file.with_name("moved.toml")
    moved.write_text(fleet.file.read_text().replace('node = "a"', 'node = "b"'))
    states = {"a": fleet.state(), "b": fleet_state_of(checked_fleet(moved, 1), 1)}
    loser, winner = sorted(states, key=lambda node: states[node].rank)
    keeps = {}
    for node, state in states.items():
        folder = fleet.node(node)
        assert (
            folder.take(state) == state == folder.take(states[loser if node == winner else winner])
        )
        keeps[node] = ChainKeeping(folder, "ring0")
        assert keeps[node].look() is None
    runs = {
        n: RunDir(Path(next(o.run for o in s.on(n) if o.of is None))) for n, s in states.items()
    }
    for node in states:
        fleet.keeper(node)
    wait_until(
        lambda: not runs[loser].stage_pids(), LIMIT_S, "the end of the one that is outranked"
    )
    why = keeps[loser].look()
    assert why is not None and why.is_any_of(told.NEWER_KNOWN, told.CHAIN_ENDED)
    assert keeps[winner].look() is None and runs[winner].stage_pids()

    alone = fleet.file.with_name("alone.toml")
    begin, _, last = moved.read_text().split("[[node]]")
    node, _, rest = last.partition("[[chain]]")
    chain, _, _ = rest.partition("[redundancy]")
    text = f"{begin}[[node]]{node}[[chain]]{chain}[redundancy]\nreplication_factor = 1\n"
    alone.write_text(text)
    code, out, err = flowcheck("fleet", "status", alone, "--json")
    assert code == 1 and set(json.loads(out)["nodes"]) == {"a", "b"}, out + err
    code, out, err = flowcheck("fleet", "down", alone, "--wait", "60", "--json")
    assert code == 0 and not json.loads(out)["running"], out + err
    assert not any(run.stage_pids() for run in runs.values())
    assert not any(fleet.node(node).read().wanted for node in "ab")


def test_two_states_of_one_generation_are_told(fleet: SmallFleet) -> None:
    first = fleet.state()
    other = msgspec.structs.replace(first, folder="/elsewhere")
    assert first.stated_digest == fleet.state(7).stated_digest != other.stated_digest
    answers = {
        node: NodeReport(
            fleet="t", node=node, generation=3, wanted=True, stated=one.stated_digest, newer=None,
            places={}, chains=(),
        )
        for node, one in (("a", first), ("b", other))
    }  # fmt: skip
    notes = view_of(first, dict(answers)).notes
    assert told.STATES_DIFFER(nodes=("a", "b"), generation=3) in notes
    answers["b"] = msgspec.structs.replace(answers["b"], stated=first.stated_digest)
    assert not any(n.is_any_of(told.STATES_DIFFER) for n in view_of(first, dict(answers)).notes)


def test_a_start_that_is_refused_is_told_and_tried_again_later(fleet: SmallFleet) -> None:
    job = fleet.folder / "ring0.toml"
    job.write_text(f'learned = "{fleet.folder / "nowhere.json"}"\n' + job.read_text())
    folder, keeps = keeping(fleet, "a", "ring0")
    why = keeps.look()
    assert why is not None and why.is_any_of(told.START_REFUSED)
    assert "nowhere.json" in str(why) + folder.log("ring0").read_text()
    assert folder.record("ring0").starts == 1
    assert keeps.look() == why and folder.record("ring0").starts == 1, "not at once"


def test_a_chain_that_ends_at_once_is_not_started_over_and_over(fleet: SmallFleet) -> None:
    folder, keeps = keeping(fleet, "a", "ring0")
    fleet.made.files[0].unlink()
    until_s = time.monotonic() + 4
    while time.monotonic() < until_s:
        keeps.look()
        time.sleep(0.05)
    assert 1 <= folder.record("ring0").starts <= 3


def asked(fleet: SmallFleet, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    place = urlsplit(fleet.state().keepers["a"])
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=20)
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.timeout(200)
def test_a_keeper_stops_for_nobody_but_who_may(fleet: SmallFleet, tmp_path: Path) -> None:
    folder = fleet.node("a")
    folder.take(fleet.state())
    fleet.keeper("a")
    wait_until(lambda: folder.is_locked("keeper"), LIMIT_S, "the keeper")

    def answers() -> bool:
        try:
            return asked(fleet, "GET", "/node") == 200
        except OSError:
            return False

    wait_until(answers, LIMIT_S, "its answer")
    right = b'{"generation": 5}'
    json = {"Content_Type": "application/json"}
    for body, headers in (
        (right, {}),
        (right, {"Content_Type": "text/plain"}),
        (right, json | {"Origin": "http://elsewhere"}),
        (b'{"generation": 0}', json),
        (b'{"generation": 4294967295}', json),
        (b'{"generation": 5, "wanted": true}', json),
        (b"[" * 300, json),
        (b"", json),
    ):
        assert asked(fleet, "POST", "/stop", body, **headers) == 400, (body, headers)
    assert asked(fleet, "POST", "/stop", right, **json, Host="elsewhere.example") == 421
    assert asked(fleet, "POST", "/node", right, **json) == 404
    assert asked(fleet, "GET", "/stop") == 404
    assert folder.read().wanted and folder.read().generation == 1
    assert asked(fleet, "POST", "/stop", right, **json) == 200
    assert (folder.read().wanted, folder.read().generation) == (False, 5)
    assert asked(fleet, "POST", "/stop", b'{"generation": 3}', **json) == 200
    assert folder.read().generation == 5, "never back"
    # Nor does an earlier start that comes late.
    assert folder.take(fleet.state(4)).generation == 5 and not folder.read().wanted
