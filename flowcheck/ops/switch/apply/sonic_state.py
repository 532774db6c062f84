"""What a SONiC switch holds: its databases as sonic-db-dump prints them."""

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
"""Databases, and patterns of Redis that match the tables below and few others: a dump for each
table would take a switch's processor seconds each."""
CONFIG = ("MIRROR_SESSION", "PORT", "PORTCHANNEL", "PORTCHANNEL_MEMBER", "VLAN_MEMBER", "INTERFACE")
STATE = ("MIRROR_SESSION_TABLE", "SWITCH_CAPABILITY")
"""Tables and keys: sonic-utilities config/main.py and acl_loader/main.py."""

GRE = "0[xX][0-9a-fA-F]{1,4}|[1-9][0-9]{0,4}"
"""Releases since 2021 keep the number that was said in hexadecimal as a decimal one
(config/main.py, validate_gre_type)."""

SessionRow = dict[str, str]


class SonicState(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by key; keys of several parts are as in the database."""

    sessions: dict[str, SessionRow]
    ports: dict[str, SessionRow]
    bundles: frozenset[str]
    members: dict[str, str]
    """Ports in a port channel or a VLAN, and which."""
    routed: frozenset[str]
    status: dict[str, str]
    """What the switch makes of each session: active, inactive."""
    incapable: frozenset[str]
    """Directions the ASIC does not have."""


def read(shell: SshShell) -> SonicState:
    """One connection. Raises StateError where the switch does not answer so."""
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
    """Line rate by PORT|..:speed, which is in Mb/s (sonic-buildimage, sonic-port.yang)."""
    speed = state.ports.get(port, {}).get("speed", "")
    return int(speed) / 1000 if speed.isascii() and speed.isdigit() and int(speed) else None


def ports_of(entry: SessionRow) -> frozenset[str]:
    """The watched ports of a session."""
    return frozenset(port.strip() for port in entry.get("src_port", "").split(",") if port.strip())


def normalized_row(entry: SessionRow) -> SessionRow:
    """An entry in one spelling, so that two that mean the same are equal."""
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
