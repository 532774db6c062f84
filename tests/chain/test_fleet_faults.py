"""Three machines with a copy each: machines die with their disks, and keepers stand still, in
seeded order. As long as one machine is left, what is restored goes on as torch's own optimizer."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

import pytest
from support.fleets import SmallFleet, small_fleet

from flowcheck.findings.catalog import fleet_running as told
from flowcheck.ops.fleet.chain_keeping import ChainKeeping

CHAINS = {"a": "ring0", "b": "ring0.b", "c": "ring0.c"}


def machine_dies(fleet: SmallFleet, node: str) -> None:
    """Its processes, their memory and its disk."""
    fleet.chain_dies(CHAINS[node])
    shutil.rmtree(fleet.node(node).root)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.timeout(900)
def test_what_any_one_machine_has_left_is_restored(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with small_fleet(tmp_path, "abc", copies=3) as fleet:
        keepers = {}
        for node, chain in CHAINS.items():
            folder = fleet.node(node)
            folder.take(fleet.state().for_node(node))
            assert ChainKeeping(folder, chain).look() is None
            keepers[node] = fleet.keeper(node)
        for chain in CHAINS.values():
            fleet.reaches(chain)
        lives = list(CHAINS)
        frozen: list[str] = []
        for _ in range(4):
            # A machine at least is left, whatever its keeper does.
            may_die = [node for node in lives if len(lives) > 1]
            may_freeze = [node for node in lives if node not in frozen]
            events = [("dies", one) for one in may_die] + [("freezes", one) for one in may_freeze]
            what, node = chance.choice(events or [("thaws", lives[0])])
            if what == "dies":
                keepers[node].process.kill()
                machine_dies(fleet, node)
                lives.remove(node)
            elif what == "freezes":
                keepers[node].process.send_signal(signal.SIGSTOP)
                frozen.append(node)
            fleet.restored_is_torchs()
        for node in frozen:
            if node in lives:
                keepers[node].process.send_signal(signal.SIGCONT)
        code, view = fleet.status()
        answers = {node for node, one in view["nodes"].items() if "code" not in one}
        assert answers == set(lives) and (code == 0) is (len(lives) == len(CHAINS))
        if "a" not in lives:
            [note] = [one for one in view["notes"] if one["code"] == told.STEP_ELSEWHERE.code]
            assert note["arguments"]["node"] in lives
