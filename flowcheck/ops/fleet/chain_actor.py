"""The actor that keeps one chain of one machine; Ray starts it again when it ends. Nothing of a
chain's data goes through it: it looks at the chain's run directory, and starts the chain as a
program of its own."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from threading import Event

import msgspec

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.fleet_running import STOPPED
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.fleet.fleet_state import FleetState, decode_fleet
from flowcheck.fleet.node_report import NodeReport
from flowcheck.ops.fleet.chain_keeping import AGAIN_MAX_S, AGAIN_MIN_S, ChainKeeping
from flowcheck.ops.fleet.detached_process import start_detached
from flowcheck.ops.fleet.keeper_client import KeeperClient
from flowcheck.ops.fleet.keeper_command import KEEPER_LOCK
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.ops.fleet.state_fence import given_to, is_newest
from flowcheck.private_files import set_private_umask

LEAVE_S = 10.0
"""Seconds that an actor stays in a fleet that was stopped. A choice: one that is started again soon
finds it."""
LOOK_S = 0.5
"""Seconds between two looks. A choice: a killed chain is started so much later."""


class ChainActor:
    """Made with the state that `fleet up` has; the machine's disk may have a newer one."""

    def __init__(self, node: str, chain: str, state: bytes) -> None:
        set_private_umask()
        self._node, self._chain = node, chain
        self._why: Finding | None = None
        self._again_s = AGAIN_MIN_S
        self._keeper_not_before_s = 0.0
        self._over_since_s: float | None = None
        self._state = state
        self._folder = NodeFolder.of(decode_fleet(state), node)
        threading.Thread(target=self._keep, daemon=True).start()

    def leave(self) -> None:
        """Ends this actor for good."""
        from flowcheck.ops.fleet.ray_cluster import leave_actor

        leave_actor()

    def take(self, state: bytes) -> bytes:
        """Gives a newer state, and returns what the machine goes by now."""
        given = decode_fleet(state)
        known = given_to(self._folder, given, lambda: self._others(given))
        told = {"generation": known.generation, "wanted": not known.stopped}
        return msgspec.json.encode(told | {"stated": known.stated})

    def _others(self, state: FleetState) -> list[NodeReport]:
        """What the keepers of the other machines answer."""
        others = {node: url for node, url in state.keepers.items() if node != self._node}
        answers = KeeperClient(state.token_file, state.ca).reports(others)
        return [one for one in answers.values() if isinstance(one, NodeReport)]

    def _keep(self) -> None:
        """For as long as this process lives."""
        while True:
            try:
                self._folder.make()
                with self._folder.locked(f"keep-{self._chain}", wait_s=AGAIN_MAX_S) as mine:
                    keeping = ChainKeeping(self._folder, self._chain)
                    while mine and self._has_state():
                        self._turn(keeping)
                        Event().wait(LOOK_S)
                Event().wait(LOOK_S)
            except (FlowCheckError, OSError) as error:
                self._tell(error)
                Event().wait(AGAIN_MAX_S / 10)

    def _has_state(self) -> bool:
        """Whether this machine has a state. The one that the actor was made with is as old as the
        actor: a machine that has none takes it only if another one says that it is the newest."""
        if self._folder.file.exists():
            return True
        own = decode_fleet(self._state)
        if is_newest(own, self._others(own)):
            self._folder.take(own)
            return True
        Event().wait(AGAIN_MAX_S / 20)
        return False

    def _turn(self, keeping: ChainKeeping) -> None:
        try:
            self._keep_keeper()
            self._why = keeping.look()
            self._leave_if_over()
        except (FlowCheckError, OSError) as error:
            self._tell(error)

    def _leave_if_over(self) -> None:
        """A fleet that was stopped leaves nothing in Ray's cluster."""
        over = self._why is not None and self._why.is_any_of(STOPPED)
        now = time.monotonic()
        self._over_since_s = (self._over_since_s or now) if over else None
        if self._over_since_s is not None and now - self._over_since_s > LEAVE_S:
            from flowcheck.ops.fleet.ray_cluster import own_actor

            own_actor().leave.remote()
            self._over_since_s = now

    def _tell(self, error: FlowCheckError | OSError) -> None:
        if isinstance(error, FlowCheckError):
            self._why = error.finding
        else:
            self._why = ERROR_TEXT(kind="system", text=plain_error_text(error))

    def _keep_keeper(self) -> None:
        """The machine's keeper outlives the actor; one of the machine's actors starts it."""
        folder = self._folder
        if time.monotonic() < self._keeper_not_before_s or not folder.read().wanted:
            return
        if folder.is_locked(KEEPER_LOCK):
            self._again_s = AGAIN_MIN_S
            return
        with folder.locked("start-keeper") as mine:
            if mine:
                words = [sys.executable, "-m", "flowcheck", "fleet", "node"]
                words += ["--state", str(folder.root)]
                start_detached(words, folder.log("keeper"), folder.read().folder)
        self._keeper_not_before_s = time.monotonic() + self._again_s
        self._again_s = min(AGAIN_MAX_S, 2 * self._again_s)
        with suppress(OSError):
            folder.log("keeper").chmod(0o600)
