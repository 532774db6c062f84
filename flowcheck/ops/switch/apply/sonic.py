"""Mirror sessions of SONiC over ssh: ours as far as this machine has noted that it makes them."""

from __future__ import annotations

import time
from threading import Event

from flowcheck.errors import StateError
from flowcheck.ops.switch.apply import sonic_state
from flowcheck.ops.switch.apply.bring import Step
from flowcheck.ops.switch.apply.commands import UnheardError, run
from flowcheck.ops.switch.apply.journal import Journal
from flowcheck.ops.switch.apply.sonic_state import Entry, State, ports_of
from flowcheck.ops.switch.apply.ssh import LIMIT_S, Shell

ACTIVE_S = 10.0
LOOK_S = 1.0
CONFIG = ("sudo", "-n", "config", "mirror_session")
SAVE = ("sudo", "-n", "config", "save", "-y")


class Sonic:
    """The session of one name. A goal is its row in CONFIG_DB, or None."""

    def __init__(self, name: str, shell: Shell, journal: Journal, *, save: bool) -> None:
        self._name, self._shell, self._journal, self._save = name, shell, journal, save
        self._unheard = False

    def observe(self) -> State:
        return sonic_state.read(self._shell)

    def noted(self) -> list[Entry]:
        """Rows this machine has made, or was about to."""
        found: list[Entry] = self._journal.read().get("made", [])
        return found

    def own(self, state: State) -> Entry | None:
        """A session is ours where it is, to the letter, one that was noted."""
        there = state.sessions.get(self._name)
        return there if there is not None and there in self.noted() else None

    def possible(self, state: State, goal: Entry | None) -> Entry | None:
        return goal

    def steps(self, state: State, goal: Entry | None) -> list[Step]:
        """A session cannot be changed: it goes, and another comes."""
        there = state.sessions.get(self._name)
        if there == goal:
            return []
        steps = []
        if self.own(state) is not None:
            steps.append(self._less(there or {}))
        elif there is not None and goal is not None:
            raise StateError(f"session {self._name} is another's now; it is left as it is")
        if goal is not None:
            steps.append(self._more(goal))
        return steps

    def run(self, step: Step, *, back: bool) -> None:
        """What the switch was told and did not answer, it may do later: that stays noted."""
        try:
            run(step.command, limit_s=LIMIT_S)
        except UnheardError as error:
            self._unheard = True
            raise StateError(
                f"{error}; {self._shell.host} may still do what it was told: look again, and "
                "`flowcheck switch remove` takes away what came later"
            ) from error

    def confirm(self, goal: Entry | None) -> None:
        """Configured is not active: the switch says what it made of it. Then, if asked, saves."""
        end = time.monotonic() + ACTIVE_S
        while goal is not None:
            status = self.observe().status.get(self._name)
            if status == "active":
                break
            if time.monotonic() > end:
                raise StateError(
                    f"{self._shell.host} holds the session and does not do it: its status is "
                    f"{status or 'not told'}, {ACTIVE_S:g} s after"
                )
            Event().wait(LOOK_S)
        if self._save:
            try:
                self._shell.run(SAVE)
            except StateError as error:
                raise StateError(f"what is saved now was not looked at: {error}") from error

    def settle(self, state: State) -> None:
        there = self.own(state)
        if there is None and self._unheard:
            return
        self._journal.write({} if there is None else {"host": self._shell.host, "made": [there]})

    def _more(self, goal: Entry) -> Step:
        ports, way = goal["src_port"], goal["direction"].lower()
        if goal["type"] == "ERSPAN":
            numbers = (goal[key] for key in ("dscp", "ttl", "gre_type", "queue"))
            where = (goal["src_ip"], goal["dst_ip"], *numbers)
            words = ("erspan", "add", self._name, *where, ports, way)
            to = goal["dst_ip"]
        else:
            words = ("span", "add", self._name, goal["dst_port"], ports, way)
            to = goal["dst_port"]

        def still_free() -> bool:
            if self._name in self.observe().sessions:
                raise StateError(f"session {self._name} has come meanwhile: somebody else's")
            made = [*(one for one in self.noted() if one != goal), goal]
            self._journal.write({"host": self._shell.host, "made": made})
            return True

        return Step(
            what=f"+ session {self._name} on {self._shell.host}: {ports} {way} -> {to}",
            command=self._shell.command((*CONFIG, *words)),
            still=still_free,
        )

    def _less(self, there: Entry) -> Step:
        def still_ours() -> bool:
            now = self.observe().sessions.get(self._name)
            if now is not None and now != there:
                raise StateError(f"session {self._name} has been changed meanwhile by another")
            return now is not None

        ports = ",".join(sorted(ports_of(there)))
        return Step(
            what=f"- session {self._name} on {self._shell.host}: {ports}",
            command=self._shell.command((*CONFIG, "remove", self._name)),
            still=still_ours,
        )
