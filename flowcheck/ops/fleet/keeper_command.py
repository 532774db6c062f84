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
from flowcheck.ops.fleet.chain_keeping import chain_supervisor
from flowcheck.ops.fleet.keeper_client import KeeperClient
from flowcheck.ops.fleet.keeper_server import GENERATION_MAX, KeeperServer
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.stages.service_loop import Signals

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
KEEPER_LOCK = "keeper"


def run(root: Path, *, as_json: bool) -> int:
    """Answers until a signal, or until the fleet was stopped and all machines know. Returns the
    exit code. Raises ConfigError where the folder has no state, another keeper runs, or its port is
    taken."""
    folder = NodeFolder(root.absolute())
    state = folder.read()
    with folder.locked(KEEPER_LOCK) as mine:
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
        self._downs: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
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
        if not state.wanted:
            self._end_chains(state)
        now = time.monotonic()
        if now - self._asked_s >= PEERS_S:
            self._asked_s = now
            if self._ask_others(state) and not state.wanted and not self._running(state):
                self._all_know_s = self._all_know_s or now
            else:
                self._all_know_s = None
        return self._all_know_s is not None and now - self._all_know_s > LINGER_S

    def _running(self, state: FleetState) -> bool:
        chains = state.on(self._folder.node)
        return bool(self._downs) or any(chain_supervisor(own) is not None for own in chains)

    def _ask_others(self, state: FleetState) -> bool:
        """Hears what other machines have seen. Whether all of them know that the fleet was
        stopped."""
        others = {node: url for node, url in state.keepers.items() if node != self._folder.node}
        client = KeeperClient(state.token_file, state.ca)
        answers = client.reports(others, PEERS_LIMIT_S)
        newer = [
            one
            for one in answers.values()
            if isinstance(one, NodeReport)
            and one.fleet == state.name
            and state.generation < one.generation < GENERATION_MAX
        ]
        stops = [one.generation for one in newer if not one.wanted]
        starts = [one.generation for one in newer if one.wanted]
        if stops and max(stops) > max(starts, default=0):
            state = self._folder.stop(max(stops))
        self._server.newer = max((g for g in starts if g > state.generation), default=None)
        return not state.wanted and all(
            isinstance(one, NodeReport) and not one.wanted and one.generation >= state.generation
            for one in answers.values()
        )

    def _end_chains(self, state: FleetState) -> None:
        """By `flowcheck down`, one process for each, under the lock of its start."""
        for name, (down, until_s) in list(self._downs.items()):
            if down.poll() is None and time.monotonic() > until_s:
                down.kill()
            if down.poll() is not None:
                del self._downs[name]
        for own in state.on(self._folder.node):
            if own.name in self._downs or chain_supervisor(own) is None:
                continue
            with self._folder.locked(f"start-{own.name}") as mine:
                if mine:
                    words = [sys.executable, "-m", "flowcheck", "down", "--run", own.run]
                    down = subprocess.Popen(words, stdin=subprocess.DEVNULL)
                    self._downs[own.name] = down, time.monotonic() + DOWN_LIMIT_S
