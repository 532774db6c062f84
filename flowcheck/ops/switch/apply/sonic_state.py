"""The state of a SONiC switch: its databases as sonic-db-dump prints them."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.switch_changes import SONIC_NO_ECHO, SONIC_NO_JSON
from flowcheck.ops.switch.apply.command_runner import SshShell

READ = (("CONFIG_DB", "[IMPV][ILNO][ART]*|*"), ("STATE_DB", "[MS][IW][IR][RT][CO][HR]_*|*"))
"""Databases, and the Redis key pattern read from each. The patterns match the tables below and few
others; one dump per table would cost seconds of the switch's CPU each."""
CONFIG = ("MIRROR_SESSION", "PORT", "PORTCHANNEL", "PORTCHANNEL_MEMBER", "VLAN_MEMBER", "INTERFACE")
STATE = ("MIRROR_SESSION_TABLE", "SWITCH_CAPABILITY")
"""Tables of STATE_DB that are read, as CONFIG above (sonic-utilities config/main.py and
acl_loader/main.py)."""

GRE = "0[xX][0-9a-fA-F]{1,4}|[1-9][0-9]{0,4}"
"""GRE protocol type, hexadecimal or decimal. Releases since 2021 store a hexadecimal input as a
decimal number (config/main.py, validate_gre_type)."""

SessionRow = dict[str, str]


class SonicState(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a SONiC switch's databases by key. Composite keys are as in the database
    ("Vlan10|Ethernet0")."""

    sessions: dict[str, SessionRow]
    ports: dict[str, SessionRow]
    bundles: frozenset[str]
    members: dict[str, str]
    """Port -> the port channel or VLAN that it is a member of."""
    routed: frozenset[str]
    status: dict[str, str]
    """Session name -> status that the switch reports: "active" or "inactive"."""
    incapable: frozenset[str]
    """Mirror directions that the ASIC does not support."""


def read(shell: SshShell) -> SonicState:
    """Reads both databases over one ssh connection. Raises StateError where the switch does not
    answer, or not with JSON."""
    begin = f"flowcheck-{secrets.token_hex(8)}"
    dumps = [("sudo", "-n", "sonic-db-dump", "-n", base, "-y", "-k", key) for base, key in READ]
    out = shell.run(("echo", begin), *dumps)
    # What a login prints of its own accord comes before.
    _, found, rest = out.partition(begin)
    if not found:
        raise StateError(SONIC_NO_ECHO(shell.host))
    try:
        return _state(_documents(rest))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(SONIC_NO_JSON(host=shell.host, error=error)) from error


def gbps(state: SonicState, port: str) -> float | None:
    """Line rate of a port in Gb/s from PORT|..:speed, which is in Mb/s (sonic-buildimage,
    sonic-port.yang); None: not stated."""
    speed = state.ports.get(port, {}).get("speed", "")
    return int(speed) / 1000 if speed.isascii() and speed.isdigit() and int(speed) else None


def ports_of(entry: SessionRow) -> frozenset[str]:
    """The source ports of a mirror session's row."""
    return frozenset(port.strip() for port in entry.get("src_port", "").split(",") if port.strip())


def normalized_row(entry: SessionRow) -> SessionRow:
    """The row in canonical spelling, so that rows with the same meaning compare equal."""
    one = {key: value for key, value in entry.items() if value not in ("", "NULL")}
    if "src_port" in one:
        one["src_port"] = ",".join(sorted(ports_of(one)))
    if re.fullmatch(GRE, one.get("gre_type", ""), re.ASCII):
        one["gre_type"] = f"{int(one['gre_type'], 0):#x}"
    return one


def _documents(text: str) -> list[dict[str, Any]]:
    decoder, at, found = json.JSONDecoder(), 0, []
    for _ in READ:
        while text[at : at + 1].isspace():
            at += 1
        rows, at = decoder.raw_decode(text, at)
        found.append(rows)
    return found


def _tables(rows: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, dict[str, SessionRow]]:
    """Rows by their key's rest, under the table that is its first part."""
    found: dict[str, dict[str, SessionRow]] = {table: {} for table in wanted}
    for key, row in rows.items():
        table, _, rest = key.partition("|")
        if table in found:
            found[table][rest] = dict(row["value"])
    return found


def _state(dumps: list[dict[str, Any]]) -> SonicState:
    config, state = _tables(dumps[0], CONFIG), _tables(dumps[1], STATE)
    joined = [*config["VLAN_MEMBER"], *config["PORTCHANNEL_MEMBER"]]
    able = state["SWITCH_CAPABILITY"].get("switch", {})
    words = {"rx": "PORT_INGRESS_MIRROR_CAPABLE", "tx": "PORT_EGRESS_MIRROR_CAPABLE"}
    return SonicState(
        sessions={name: normalized_row(row) for name, row in config["MIRROR_SESSION"].items()},
        ports=config["PORT"],
        bundles=frozenset(config["PORTCHANNEL"]),
        members={key.partition("|")[2]: key.partition("|")[0] for key in joined},
        routed=frozenset(key.partition("|")[0] for key in config["INTERFACE"]),
        status={
            name: row.get("status", "inactive")
            for name, row in state["MIRROR_SESSION_TABLE"].items()
        },
        incapable=frozenset(way for way, key in words.items() if able.get(key, "true") != "true"),
    )
