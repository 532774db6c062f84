"""ovs-vswitchd itself, beside its database: what a database cannot be asked for."""

from __future__ import annotations

from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.ops.switch.apply.commands import run
from flowcheck.ops.switch.apply.ovs_state import TIMEOUT_S

COOKIE = 0x666C6F77636B
NOWHERE = 65279
"""No port has this number, and ours is the lowest priority: the flow decides on nothing. It is one
below the largest of OpenFlow 1.0 (ofp10_port, OFPP_MAX is 0xff00)."""
VERSIONS = ",".join(f"OpenFlow1{minor}" for minor in range(6))


class Daemon:
    """The one whose database is `database`; None: this machine's."""

    def __init__(self, database: str | None) -> None:
        self.remote = database is not None and not database.startswith("unix:")
        here = database if database and not self.remote else None
        self._folder = Path(here.removeprefix("unix:")).parent if here else None

    def learned(self, bridge: str) -> str:
        """Which addresses are behind which port. Raises StateError where it does not answer."""
        target = [f"--target={self._control()}"] if self._folder else []
        return run(["ovs-appctl", *target, f"--timeout={TIMEOUT_S}", "fdb/show", bridge])

    def answers(self) -> bool:
        """It runs; True as well where it is on another machine and cannot be asked."""
        if self.remote:
            return True
        try:
            target = [f"--target={self._control()}"] if self._folder else []
            run(["ovs-appctl", *target, f"--timeout={TIMEOUT_S}", "version"])
        except StateError:
            return False
        return True

    def look_again(self, bridge: str) -> None:
        """Has the flows in use translated anew, in place: no frame is lost by it.

        ovs-vswitchd does not do that for a mirror that comes or goes (seen in 3.1.0: a flow in use
        was copied neither at once nor later, and copied on after the mirror was gone); it does for
        any flow that comes or goes, so one comes and goes. Raises StateError.
        """
        where = f"unix:{self._folder}/{bridge}.mgmt" if self._folder else bridge
        words = ("ovs-ofctl", f"--timeout={TIMEOUT_S}", "-O", VERSIONS)
        flow = f"cookie={COOKIE:#x},priority=0,in_port={NOWHERE},actions=drop"
        run([*words, "add-flow", where, flow])
        run([*words, "del-flows", where, f"cookie={COOKIE:#x}/-1"])

    def _control(self) -> Path:
        """The daemon's socket: ovs-appctl(8) names it by the process."""
        assert self._folder is not None
        found = sorted(self._folder.glob("ovs-vswitchd*.ctl"))
        if not found:
            raise StateError(f"no ovs-vswitchd*.ctl in {self._folder}")
        return found[-1]
