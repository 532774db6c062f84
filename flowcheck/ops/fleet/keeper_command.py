"""`flowcheck fleet node`: a machine's keeper. It answers for the machine's chains, ends them when
the fleet was stopped, and hears of that from other machines if it was away meanwhile.

It starts no chain: Ray's actors do. It outlives them and Ray.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.fleet_running import KEEPER_RUNS
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.fleet.node_report import NodeReport
from flowcheck.ops.fleet.keeper_client import KeeperClient
from flowcheck.ops.fleet.keeper_server import KeeperServer
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.ops.fleet.state_fence import hear_others
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Signals
from flowcheck.stages.stage_table import SUPERVISOR

LOOK_S = 0.5
"""Seconds between two looks at the state. A choice: shorter costs processor time."""
PEERS_S = 5.0
"""Seconds between two questions to the other machines. A choice: a machine that was away ends its
chains so much later."""
PEERS_LIMIT_S = 2.0
"""Seconds for their answers. A choice, below PEERS_S."""
LINGER_S = 20.0
"""Seconds that a keeper stays after all machines know that the fleet was stopped, several times
PEERS_S, so that each of them hears so of each."""
DOWN_LIMIT_S = 600.0
"""Seconds for `flowcheck down` of a chain, which may write a killed one's checkpoint. A choice:
it is begun again after that."""
LOCK_WAIT_S = 2.0
"""Seconds that another keeper may take to end. Who looks whether there is one holds the lock too,
for an instant."""
KEEPER_LOCK = "keeper"


def run(root: Path, *, as_json: bool) -> int:
    """Answers until a signal, or until the fleet was stopped and all machines know. Returns the
    exit code. Raises ConfigError where the folder has no state, another keeper runs, or its port is
    taken."""
    folder = NodeFolder(root.absolute())
    state = folder.read()
    with folder.locked(KEEPER_LOCK, wait_s=LOCK_WAIT_S) as mine:
        if not mine:
            raise ConfigError("--state", str(root), KEEPER_RUNS(folder.node))
        server = KeeperServer(
            folder, state, lambda line: None if as_json else print(line, flush=True)
        )
        with Signals() as signals:
            server.start()
            told = f"answers for {folder.node} at {server.url}/node"
            print(json.dumps({"url": server.url}) if as_json else told, flush=True)
            try:
                _Keeper(folder, server).until(lambda: bool(signals.received))
            finally:
                server.stop()
    return 0


class _Keeper:
    def __init__(self, folder: NodeFolder, server: KeeperServer) -> None:
        self._folder, self._server = folder, server
        self._downs: dict[Path, tuple[subprocess.Popen[bytes], float]] = {}
        self._asked_s = -PEERS_S
        self._all_know_s: float | None = None

    def until(self, ended: Callable[[], bool]) -> None:
        while not ended():
            try:
                if self._turn():
                    return
            except (FlowCheckError, OSError) as error:  # the disk is full, or the folder is damaged
                self._server.say(str(error))
            Event().wait(LOOK_S)

    def _turn(self) -> bool:
        """Whether there is nothing left to answer for."""
        state = self._folder.read()
        self._end_chains(self._unwanted(state))
        now = time.monotonic()
        if now - self._asked_s >= PEERS_S:
            self._asked_s = now
            if self._ask_others(state) and not state.wanted and not self._running():
                self._all_know_s = self._all_know_s or now
            else:
                self._all_know_s = None
        return self._all_know_s is not None and now - self._all_know_s > LINGER_S

    def _running(self) -> bool:
        return bool(self._downs) or any(map(_runs, self._folder.runs()))

    def _ask_others(self, state: FleetState) -> bool:
        """Hears what other machines have seen. Whether all of them know that the fleet was
        stopped."""
        others = {node: url for node, url in state.keepers.items() if node != self._folder.node}
        client = KeeperClient(state.token_file, state.ca)
        answers = client.reports(others, PEERS_LIMIT_S)
        told = [one for one in answers.values() if isinstance(one, NodeReport)]
        state = hear_others(self._folder, state, told)
        newer = self._folder.outranks(state)
        self._server.newer = None if newer is None else newer.generation
        return not state.wanted and all(
            isinstance(one, NodeReport) and not one.wanted and one.generation >= state.generation
            for one in answers.values()
        )

    def _end_chains(self, runs: list[Path]) -> None:
        """By `flowcheck down`, one process for each. None of them is started again meanwhile: the
        state that says so is on the disk."""
        for run, (down, until_s) in list(self._downs.items()):
            if down.poll() is None and time.monotonic() > until_s:
                down.kill()
            if down.poll() is not None:
                del self._downs[run]
        for run in runs:
            if run not in self._downs and _runs(run):
                words = [sys.executable, "-m", "flowcheck", "down", "--run", str(run)]
                down = subprocess.Popen(words, stdin=subprocess.DEVNULL)
                self._downs[run] = down, time.monotonic() + DOWN_LIMIT_S

    def _unwanted(self, state: FleetState) -> list[Path]:
        """Run directories on this machine whose chains are not to run, among them those of an
        earlier state."""
        wanted = self._folder.wanted_here(state)
        return [run for run in self._folder.runs() if run.name not in wanted]


def _runs(run: Path) -> bool:
    return SUPERVISOR.name in RunDir(run).stage_pids()
