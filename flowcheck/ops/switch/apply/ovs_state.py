"""The state of Open vSwitch: its database, read in one transaction, and what only the daemon can
report or do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.switch_changes import OVS_NO_SOCKET, OVSDB_UNEXPECTED
from flowcheck.ops.switch.apply.command_runner import run_json, run_switch_command

TIMEOUT_S = 10
"""Seconds an Open vSwitch command may take (--timeout); without a limit it waits forever for a
daemon that is not running. A choice: a longer limit delays the error. It must stay below LOCK_S
(apply_journal.py)."""
COLUMNS = {
    "Open_vSwitch": ("external_ids", "other_config"),
    "Bridge": ("_uuid", "name", "ports", "mirrors", "controller"),
    "Port": ("_uuid", "name", "interfaces", "tag", "vlan_mode"),
    "Interface": ("_uuid", "name", "type", "ofport", "error", "link_speed", "status"),
    "Mirror": (
        *("_uuid", "name", "external_ids", "output_port", "output_vlan", "snaplen", "statistics"),
        *("select_all", "select_src_port", "select_dst_port", "select_vlan"),
    ),
}

VIRTUAL_DRIVERS = frozenset({"bridge", "dummy", "openvswitch", "tun", "veth", "virtio_net"})
"""Drivers (status:driver_name) of virtual devices, whose reported speed is not a real line rate."""


class OvsBridge(msgspec.Struct, frozen=True, kw_only=True):
    """A bridge: UUIDs of its ports and mirrors."""

    name: str
    ports: frozenset[str]
    mirrors: frozenset[str]
    controlled: bool
    """True: the bridge has an OpenFlow controller."""


class OvsPort(msgspec.Struct, frozen=True, kw_only=True):
    """A port, with what its interfaces report."""

    uuid: str
    name: str
    tag: int | None
    vlan_mode: str | None
    kinds: tuple[str, ...]
    """Type of each interface of the port; an empty text is a system device."""
    numbers: tuple[int, ...]
    """OpenFlow port numbers of the interfaces that the daemon has opened."""
    errors: tuple[str, ...]
    gbps: float | None = None
    """Line rate in Gb/s (vswitch.ovsschema, link_speed, in bit/s); None: a virtual device, or
    unknown."""


class OvsMirror(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror: `output`, `rx` and `tx` are UUIDs of ports."""

    uuid: str
    name: str
    mark: str | None
    """Value of external_ids:flowcheck, the session's name; None: not FlowCheck's mirror."""
    output: str | None
    rx: frozenset[str]
    tx: frozenset[str]
    plain: bool
    """True: no further columns are set (select_all, VLANs, snaplen)."""
    counted: bool
    """True: the daemon has written statistics, so it mirrors frames."""


class OvsState(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the database that matter for mirrors. Ports and mirrors by UUID, bridges by
    name."""

    bridges: dict[str, OvsBridge]
    ports: dict[str, OvsPort]
    mirrors: dict[str, OvsMirror]
    virtual_network: bool
    """True: OVN manages this Open vSwitch."""
    counts_after_ms: int

    def port(self, name: str) -> OvsPort | None:
        """The port named `name` (names are unique in the database); None: there is none."""
        return next((port for port in self.ports.values() if port.name == name), None)

    def bridge_of(self, uuid: str) -> OvsBridge | None:
        """The bridge that has the port or mirror `uuid`; None: no bridge."""
        return next((one for one in self.bridges.values() if uuid in one.ports | one.mirrors), None)


def read(database: str | None) -> OvsState:
    """Reads the database in one transaction. database: as ovs-vsctl's --db; None: this machine's.
    Raises StateError where the database does not answer."""
    selects = [
        {"op": "select", "table": table, "where": [], "columns": list(columns)}
        for table, columns in COLUMNS.items()
    ]
    answer = run_json(
        [
            *("ovsdb-client", f"--timeout={TIMEOUT_S}", "transact"),
            *([database] if database else []),
            json.dumps(["Open_vSwitch", *selects]),
        ]
    )
    try:
        tables = {
            table: [{key: _plain(cell) for key, cell in row.items()} for row in one["rows"]]
            for table, one in zip(COLUMNS, answer, strict=True)
        }
        return _state(tables)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StateError(OVSDB_UNEXPECTED(str(answer))) from error


def _plain(cell: Any) -> Any:
    """RFC 7047, 5.1: a set of one is its atom, a map a list of pairs, a UUID a pair."""
    match cell:
        case ["uuid", str(uuid)]:
            return uuid
        case ["set", list(members)]:
            return frozenset(_plain(member) for member in members)
        case ["map", list(pairs)]:
            return {_plain(key): _plain(value) for key, value in pairs}
    return cell


def _set(cell: Any) -> frozenset[Any]:
    return cell if isinstance(cell, frozenset) else frozenset([cell])


def _one(cell: Any) -> Any:
    """A column that may be empty."""
    return next(iter(_set(cell)), None)


def _state(tables: dict[str, list[dict[str, Any]]]) -> OvsState:
    interfaces = {row["_uuid"]: row for row in tables["Interface"]}
    top = tables["Open_vSwitch"][0]
    return OvsState(
        bridges={
            row["name"]: OvsBridge(
                name=row["name"],
                ports=_set(row["ports"]),
                mirrors=_set(row["mirrors"]),
                controlled=bool(_set(row["controller"])),
            )
            for row in tables["Bridge"]
        },
        ports={
            row["_uuid"]: _port(row, [interfaces[one] for one in _set(row["interfaces"])])
            for row in tables["Port"]
        },
        mirrors={row["_uuid"]: _mirror(row) for row in tables["Mirror"]},
        virtual_network=any(key.startswith("ovn-") for key in top["external_ids"]),
        counts_after_ms=int(top["other_config"].get("stats-update-interval", 5000)),
    )


def _port(row: dict[str, Any], interfaces: list[dict[str, Any]]) -> OvsPort:
    numbers = (_one(one["ofport"]) for one in interfaces)
    errors = (_one(one["error"]) for one in interfaces)
    return OvsPort(
        uuid=row["_uuid"],
        name=row["name"],
        tag=_one(row["tag"]),
        vlan_mode=_one(row["vlan_mode"]),
        kinds=tuple(one["type"] for one in interfaces),
        numbers=tuple(number for number in numbers if number is not None and number > 0),
        errors=tuple(error for error in errors if error),
        gbps=_gbps(interfaces),
    )


def _gbps(interfaces: list[dict[str, Any]]) -> float | None:
    drivers = {dict(one["status"]).get("driver_name", "") for one in interfaces}
    speeds = [_one(one["link_speed"]) for one in interfaces]
    if len(speeds) != 1 or not speeds[0] or drivers & VIRTUAL_DRIVERS:
        return None
    return float(speeds[0]) / 1e9


def _mirror(row: dict[str, Any]) -> OvsMirror:
    return OvsMirror(
        uuid=row["_uuid"],
        name=row["name"],
        mark=row["external_ids"].get("flowcheck"),
        output=_one(row["output_port"]),
        rx=_set(row["select_src_port"]),
        tx=_set(row["select_dst_port"]),
        plain=not (
            row["select_all"]
            or _set(row["select_vlan"])
            or _set(row["output_vlan"])
            or _set(row["snaplen"])
        ),
        counted=bool(row["statistics"]),
    )


PROBE_FLOW_COOKIE = 0x666C6F77636B
"""Cookie of the temporary OpenFlow flow by which FlowCheck makes the daemon translate flows again:
"flowck" in ASCII."""
UNUSED_PORT = 65279
"""Port number that this flow matches: 65279, one below OFPP_MAX of OpenFlow 1.0 (ofp10_port,
0xff00). No port has it, and the flow's priority is the lowest, so it matches no frame."""
VERSIONS = ",".join(f"OpenFlow1{minor}" for minor in range(6))


class OvsDaemon:
    """The ovs-vswitchd of one database; None: this machine's."""

    def __init__(self, database: str | None) -> None:
        self.remote = database is not None and not database.startswith("unix:")
        here = database if database and not self.remote else None
        self._folder = Path(here.removeprefix("unix:")).parent if here else None

    def learned(self, bridge: str) -> str:
        """The MAC table of a bridge as `ovs-appctl fdb/show` prints it. Raises StateError where
        the daemon does not answer."""
        target = [f"--target={self._control()}"] if self._folder else []
        return run_switch_command(
            ["ovs-appctl", *target, f"--timeout={TIMEOUT_S}", "fdb/show", bridge]
        )

    def answers(self) -> bool:
        """Whether the daemon runs. True also for a daemon on another machine, which cannot be
        checked."""
        if self.remote:
            return True
        try:
            target = [f"--target={self._control()}"] if self._folder else []
            run_switch_command(["ovs-appctl", *target, f"--timeout={TIMEOUT_S}", "version"])
        except StateError:
            return False
        return True

    def revalidate_flows(self, bridge: str) -> None:
        """Makes the daemon translate the flows of a bridge again. No frame is lost by it.

        ovs-vswitchd does not do so when a mirror is added or removed (observed in 3.1.0: a flow in
        use was not mirrored after the mirror was added, and stayed mirrored after it was removed),
        but it does when an OpenFlow flow is added or removed. So this adds and removes one. Raises
        StateError where the daemon does not answer.
        """
        where = f"unix:{self._folder}/{bridge}.mgmt" if self._folder else bridge
        words = ("ovs-ofctl", f"--timeout={TIMEOUT_S}", "-O", VERSIONS)
        flow = f"cookie={PROBE_FLOW_COOKIE:#x},priority=0,in_port={UNUSED_PORT},actions=drop"
        run_switch_command([*words, "add-flow", where, flow])
        run_switch_command([*words, "del-flows", where, f"cookie={PROBE_FLOW_COOKIE:#x}/-1"])

    def _control(self) -> Path:
        """The daemon's socket: ovs-appctl(8) names it by the process."""
        assert self._folder is not None
        found = sorted(self._folder.glob("ovs-vswitchd*.ctl"))
        if not found:
            raise StateError(OVS_NO_SOCKET(self._folder))
        return found[-1]
