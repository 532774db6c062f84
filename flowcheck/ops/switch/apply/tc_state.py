"""The state of Linux tc from the JSON of `tc -j` and `ip -j`, and the journal of qdiscs and tables
that FlowCheck created. The programs are used instead of netlink, because an operator can type what
is read and run, and pyroute2 0.9 does not support the cookie of an action or half of the
classifiers."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.switch_changes import TC_UNREADABLE
from flowcheck.ops.switch.apply.apply_journal import ApplyJournal
from flowcheck.ops.switch.apply.command_runner import run_json

WAYS = ("ingress", "egress")
TC = ("tc", "-j")


class NetDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A network device as `ip -j` shows it."""

    name: str
    index: int
    mac: str
    mtu: int
    up: bool
    master: str | None
    addresses: tuple[str, ...]
    frames: tuple[int, int] = (0, 0)
    """(received, sent) frames since the device was created."""


class FilterQdisc(msgspec.Struct, frozen=True, kw_only=True):
    """The qdisc that filters are attached to: "clsact", or "ingress", which has no egress side."""

    kind: str
    shared: bool
    """True: its filters are in a shared block of several devices."""
    chains: bool
    """True: it has chains without filters, which tc keeps only if they were added explicitly."""


class TcFilter(msgspec.Struct, frozen=True, kw_only=True):
    """One tc filter of one direction of a device, or an empty u32 table."""

    device: str
    way: str
    protocol: str
    pref: int
    kind: str
    chain: int
    handle: str | None
    """Handle of the filter; None: an empty u32 table."""
    cookies: tuple[str, ...]
    controls: tuple[str, ...]
    """Control action after each action ("pipe", "continue", "ok", ...)."""
    copies_to: tuple[str, ...]
    hands_to: tuple[str, ...] = ()
    """Devices that receive frames in other ways: by redirect, or mirrored to their ingress."""
    matches_all: bool
    in_hardware_only: bool

    def continues(self) -> bool:
        """Whether all frames that reach this filter also reach the filters after it."""
        return (
            bool(self.controls)
            and self.controls[-1] == "continue"
            and set(self.controls) <= {"continue", "pipe"}
        )


class TcState(msgspec.Struct, frozen=True, kw_only=True):
    """Devices, qdiscs and filters, read together."""

    links: dict[str, NetDevice]
    hooks: dict[str, FilterQdisc]
    root: dict[str, str]
    """Device -> kind of its root qdisc."""
    filters: list[TcFilter]

    def filters_on(self, device: str, way: str) -> list[TcFilter]:
        """The filters of one direction of a device, without empty tables."""
        return [
            one
            for one in self.filters
            if (one.device, one.way) == (device, way) and one.handle is not None
        ]


def read() -> TcState:
    """Reads devices, qdiscs and filters of this network namespace. Raises StateError where tc or
    ip fails."""
    links = {}
    for one in run_json(["ip", "-j", "-s", "address", "show"]) or []:
        if link := _link(one):
            links[link.name] = link
    kinds, shared, root = {}, set(), {}
    for one in run_json([*TC, "qdisc", "show"]) or []:
        device = one.get("dev", "")
        if one.get("kind") in ("clsact", "ingress"):
            kinds[device] = str(one["kind"])
            if any("block" in key for key in one):
                shared.add(device)
        elif one.get("root"):
            root[device] = str(one.get("kind"))
    hooks, filters = {}, []
    for device, kind in kinds.items():
        if device in links:
            chains = False
            for way in WAYS if kind == "clsact" else WAYS[:1]:
                there = read_hook(device, way)
                chains |= bool(read_chains(device, way) - {one.chain for one in there})
                filters += there
            hooks[device] = FilterQdisc(kind=kind, shared=device in shared, chains=chains)
    return TcState(links=links, hooks=hooks, root=root, filters=filters)


def read_hook(device: str, way: str) -> list[TcFilter]:
    """The filters of one direction of a device, in the order in which frames meet them; empty if
    the device is gone.

    Raises StateError where tc fails or prints a filter that cannot be read.
    """
    shown = _shown(device, "filter", way)
    return [filter_of(device, way, one) for one in shown if "options" in one]


def read_chains(device: str, way: str) -> set[int]:
    """The numbers of the chains of one direction of a device. Raises StateError where tc fails."""
    return {one.get("chain", 0) for one in _shown(device, "chain", way)}


def frames(device: str) -> tuple[int, int]:
    """(received, sent) frames of a device so far. Raises StateError if the device is gone."""
    (one,) = run_json(["ip", "-j", "-s", "link", "show", "dev", device])
    return _frames(one)


def device_gone(device: str) -> bool:
    """Whether the device is no longer in this network namespace."""
    try:
        return not socket.if_nametoindex(device)
    except OSError:
        return True


def _shown(device: str, what: str, way: str) -> list[dict[str, Any]]:
    """Devices come and go while we look, as containers do: most of them are not about us."""
    try:
        return run_json([*TC, what, "show", "dev", device, way]) or []
    except StateError:
        if device_gone(device):
            return []
        raise


def namespace() -> str:
    """A text that identifies this network namespace of this boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{Path('/proc/thread-self/ns/net').stat().st_ino}"


def has_classifier(name: str) -> bool:
    """Whether this kernel has the classifier: built in, loaded, or as a module that it can load."""
    module = f"cls_{name}"
    if Path("/sys/module", module).exists():
        return True
    folder = Path("/lib/modules", os.uname().release)
    for listing in ("modules.builtin", "modules.dep"):
        path = folder / listing
        if path.is_file() and f"/{module}.ko" in path.read_text():
            return True
    return False


def _link(one: dict[str, Any]) -> NetDevice | None:
    if "ifname" not in one:
        return None
    found = []
    for address in one.get("addr_info", []):
        if address.get("local") and address.get("scope") != "link":
            found.append(f"{address['local']}/{address.get('prefixlen')}")
    return NetDevice(
        name=one["ifname"],
        index=one["ifindex"],
        mac=one.get("address", ""),
        mtu=one.get("mtu", 0),
        up="UP" in one.get("flags", ()),
        master=one.get("master"),
        addresses=tuple(found),
        frames=_frames(one),
    )


def _frames(one: dict[str, Any]) -> tuple[int, int]:
    counts = one.get("stats64", {})
    rx, tx = (counts.get(way, {}).get("packets", 0) for way in ("rx", "tx"))
    return rx, tx


def filter_of(device: str, way: str, one: dict[str, Any]) -> TcFilter:
    """A filter from the JSON of `tc -j`. Raises StateError for JSON that cannot be read."""
    try:
        options, actions = one["options"], one["options"].get("actions", [])
        handle = options.get("fh", options.get("handle"))
        mirred = [action for action in actions if action.get("kind") == "mirred"]
        table = one["kind"] == "u32" and "ht_divisor" in options
        return TcFilter(
            device=device,
            way=way,
            protocol=one["protocol"],
            pref=one["pref"],
            kind=one["kind"],
            chain=one.get("chain", 0),
            handle=None if table else str(handle),
            cookies=tuple(str(action["cookie"]) for action in actions if "cookie" in action),
            controls=tuple(_control(action) for action in actions),
            copies_to=tuple(str(one.get("to_dev")) for one in mirred if _copies(one)),
            hands_to=tuple(str(one.get("to_dev")) for one in mirred if not _copies(one)),
            matches_all=one["kind"] == "matchall" or _all_of_u32(options),
            in_hardware_only=bool(options.get("skip_sw")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise StateError(TC_UNREADABLE(device=device, way=way, filter=str(one))) from error


def _copies(mirred: dict[str, Any]) -> bool:
    return (mirred.get("mirred_action"), mirred.get("direction")) == ("mirror", "egress")


def _control(action: dict[str, Any]) -> str:
    control = action.get("control_action", {})
    return str(control.get("type")) if isinstance(control, dict) else str(control)


def _all_of_u32(options: dict[str, Any]) -> bool:
    match = options.get("match")
    return isinstance(match, dict) and str(match.get("mask")) == "0"


class TcJournal:
    """Journal of the qdiscs and tables that FlowCheck created in one network namespace of one
    boot; device numbers start again with each boot."""

    def __init__(self, journal: ApplyJournal) -> None:
        self._journal = journal

    def hook(self, link: NetDevice) -> None:
        """Notes that FlowCheck is about to add clsact to a device."""
        noted = self._read()
        self._entry(noted, link)["clsact"] = True
        self._journal.write(noted)

    def has_hook(self, link: NetDevice) -> bool:
        """Whether FlowCheck added the clsact qdisc of a device."""
        return bool(self._read().get(_key(link), {}).get("clsact"))

    def note_table(self, link: NetDevice, way: str, pref: int) -> None:
        """Notes that FlowCheck is about to delete a u32 filter, whose empty table may remain."""
        noted = self._read()
        tables = self._entry(noted, link)["tables"]
        if [way, pref] not in tables:
            tables.append([way, pref])
            self._journal.write(noted)

    def table(self, state: TcState, one: TcFilter) -> bool:
        """Whether an empty u32 table is a leftover of FlowCheck's filters."""
        link = state.links.get(one.device)
        tables = self._read().get(_key(link), {}).get("tables", []) if link else []
        return [one.way, one.pref] in tables

    def keep(self, state: TcState, used: set[str]) -> None:
        """Removes entries for devices and qdiscs that no longer exist. used: devices that have
        filters of this session."""
        noted = self._read()
        hooked = {_key(link) for link in state.links.values() if link.name in state.hooks}
        mine = {_key(link) for link in state.links.values() if link.name in used}
        kept = {}
        for key, entry in noted.items():
            if key in hooked and (entry["clsact"] or key in mine):
                kept[key] = {"clsact": entry["clsact"], "tables": []}
        if kept != noted:
            self._journal.write(kept)

    def _read(self) -> dict[str, Any]:
        return self._journal.read()

    @staticmethod
    def _entry(noted: dict[str, Any], link: NetDevice) -> dict[str, Any]:
        entry: dict[str, Any] = noted.setdefault(_key(link), {"clsact": False, "tables": []})
        return entry


def _key(link: NetDevice) -> str:
    return f"{link.index} {link.name} {link.mac}"
