"""Counter structs read as dictionaries: the C struct is the only list of counters there is."""

from __future__ import annotations

from typing import Any

from flowcheck._core import ffi


def read(counters: Any) -> dict[str, int]:
    """{field name: value} of a C counter struct or a pointer to one."""
    kind = ffi.typeof(counters)
    struct = kind.item if kind.kind == "pointer" else kind
    return {name: int(getattr(counters, name)) for name, _ in struct.fields}


VERDICTS: tuple[str, ...] = tuple(
    name.removeprefix("FC_").lower()
    for _, name in sorted(ffi.typeof("enum fc_verdict").elements.items())
    if name != "FC_VERDICTS"
)
"""Verdict names in the order of enum fc_verdict (fc_counters.h)."""


def by_verdict(parse_counters: Any) -> dict[str, int]:
    """{verdict: frames} from a struct fc_parse_counters; every verdict, zeros too."""
    values = read(parse_counters)
    return {name: values[f"{name}_frames"] for name in VERDICTS}
