"""The tc commands that add and delete mirror filters and qdiscs, each with a last look before
it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from flowcheck.findings.catalog.switch_changes import (
    ADD_CLSACT,
    ADD_FILTER,
    REMOVE_CLSACT,
    REMOVE_FILTER,
    REMOVE_FILTER_TABLE,
    REMOVE_STALE_FILTER,
)
from flowcheck.ops.switch.apply import tc_state
from flowcheck.ops.switch.apply.reconciler import CommandStep
from flowcheck.ops.switch.apply.tc_state import TcFilter

MATCHES = {
    "matchall": ("matchall",),
    "hardware": ("matchall", "skip_sw"),
    "u32": ("u32", "match", "u32", "0", "0"),
}


class MirrorFilter(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A tc filter that copies the frames of one direction of `device` to `monitor`. way: "ingress"
    or "egress"."""

    device: str
    way: str
    monitor: str
    form: str = ""
    """Classifier (a key of MATCHES); empty: any existing one, and for a new filter the one that
    the kernel has."""

    @property
    def place(self) -> tuple[str, str, str]:
        """(device, direction, monitor): what the filter copies, whatever its classifier."""
        return self.device, self.way, self.monitor

    def __str__(self) -> str:
        return f"{self.device} {self.way} -> {self.monitor}"


def mirror_filter_of(one: TcFilter) -> MirrorFilter:
    """The copy that an existing filter of FlowCheck makes."""
    form = "hardware" if one.in_hardware_only else one.kind
    return MirrorFilter(device=one.device, way=one.way, monitor=one.copies_to[0], form=form)


def delete_filter(one: TcFilter, still: Callable[[], bool]) -> CommandStep:
    """The command that deletes one filter by its handle; a pref alone would delete all filters of
    that pref. still: checked before it runs."""
    what = REMOVE_STALE_FILTER(device=one.device, way=one.way, pref=one.pref)
    if one.copies_to and one.copies_to[0] != "*":
        to = one.copies_to[0]
        what = REMOVE_FILTER(device=one.device, way=one.way, monitor=to, pref=one.pref)
    where = ("tc", "filter", "del", "dev", one.device, one.way)
    which = ("protocol", one.protocol, "pref", str(one.pref))
    return CommandStep(
        what=what,
        command=(*where, *which, "handle", str(one.handle), one.kind),
        still=still,
    )


def delete_table(device: str, way: str, protocol: str, pref: int) -> CommandStep:
    """The command that deletes an empty u32 table, which u32 leaves where the device has other u32
    filters."""
    return CommandStep(
        what=REMOVE_FILTER_TABLE(device=device, way=way, pref=pref),
        command=(
            *("tc", "filter", "del", "dev", device, way),
            *("protocol", protocol, "pref", str(pref)),
        ),
        still=partial(_empty_table, device, way, pref),
    )


def add_filter(copy: MirrorFilter, pref: int, form: str, cookie: str) -> CommandStep:
    """The command that adds a mirror filter. It ends with "continue", so that later filters see
    the frame as well. form: classifier, a key of MATCHES; cookie: hexadecimal."""
    return CommandStep(
        what=ADD_FILTER(
            device=copy.device, way=copy.way, monitor=copy.monitor, pref=pref, form=form
        ),
        command=(
            *("tc", "filter", "add", "dev", copy.device, copy.way),
            *("protocol", "all", "pref", str(pref), *MATCHES[form]),
            *("action", "mirred", "egress", "mirror", "dev", copy.monitor, "continue"),
            *("cookie", cookie),
        ),
    )


def gone_with_device(step: CommandStep) -> bool:
    """Whether the command failed because its device no longer exists, which also removed what it
    would delete. (`dev` is the fourth word of all commands here.)"""
    return step.command[2] == "del" and tc_state.device_gone(step.command[4])


def add_clsact(device: str, noted: Callable[[], bool]) -> CommandStep:
    """The command that adds the clsact qdisc. noted: called before it runs; it writes to the
    journal that the qdisc is FlowCheck's."""
    return CommandStep(
        what=ADD_CLSACT(device),
        command=("tc", "qdisc", "add", "dev", device, "clsact"),
        still=noted,
    )


def delete_clsact(device: str) -> CommandStep:
    """The command that deletes the clsact qdisc. It runs only if nobody's filters or chains are
    left."""
    return CommandStep(
        what=REMOVE_CLSACT(device),
        command=("tc", "qdisc", "del", "dev", device, "clsact"),
        still=partial(_still_empty, device),
    )


def _empty_table(device: str, way: str, pref: int) -> bool:
    there = [one for one in tc_state.read_hook(device, way) if one.pref == pref]
    return bool(there) and not any(one.handle for one in there)


def _still_empty(device: str) -> bool:
    return not any(
        tc_state.read_hook(device, way) or tc_state.read_chains(device, way)
        for way in tc_state.WAYS
    )
