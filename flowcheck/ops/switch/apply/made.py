"""What of tc was made by us and can carry no cookie: the qdisc clsact, u32's emptied tables."""

from __future__ import annotations

from typing import Any

from flowcheck.ops.switch.apply.journal import Journal
from flowcheck.ops.switch.apply.tc_state import Filter, Link, State


class Made:
    """A journal of one network namespace of one boot: numbers of devices begin anew with it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def hook(self, link: Link) -> None:
        """clsact is about to be put on this device."""
        noted = self._read()
        self._entry(noted, link)["clsact"] = True
        self._journal.write(noted)

    def has_hook(self, link: Link) -> bool:
        """clsact was put there by us."""
        return bool(self._read().get(_key(link), {}).get("clsact"))

    def note_table(self, link: Link, way: str, pref: int) -> None:
        """A filter of u32 is about to go; its table may stay."""
        noted = self._read()
        tables = self._entry(noted, link)["tables"]
        if [way, pref] not in tables:
            tables.append([way, pref])
            self._journal.write(noted)

    def table(self, state: State, one: Filter) -> bool:
        """An empty table was left there by us."""
        link = state.links.get(one.device)
        tables = self._read().get(_key(link), {}).get("tables", []) if link else []
        return [one.way, one.pref] in tables

    def keep(self, state: State, used: set[str]) -> None:
        """Forgets devices that are gone, and hooks that are."""
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
    def _entry(noted: dict[str, Any], link: Link) -> dict[str, Any]:
        entry: dict[str, Any] = noted.setdefault(_key(link), {"clsact": False, "tables": []})
        return entry


def _key(link: Link) -> str:
    return f"{link.index} {link.name} {link.mac}"
