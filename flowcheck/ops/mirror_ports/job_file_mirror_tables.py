"""Writes the chosen ports as [[mirror]] tables of a job file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from flowcheck.config import MirrorConfig
from flowcheck.errors import ConfigError, naming_file
from flowcheck.findings.catalog.refused_layouts import (
    MACHINE_IN_FILE_NAME,
    MIRRORS_FILE_TAKEN,
    MIRRORS_NEED_MACHINE,
    NO_HOST,
)
from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan

TABLES_COMMENT = "# Mirrored ports, as `flowcheck ports` chose them"
MACHINE_PLACEHOLDER = "{machine}"
"""Placeholder in a file name that is replaced by the machine's name."""


def write_mirrors(name: str, chosen: MirrorPlan) -> tuple[Path, ...]:
    """Writes the [[mirror]] tables of each machine to a TOML file, to be appended to its job file;
    returns the paths.

    name: file name; with `{machine}` in it if there are several machines.

    Raises ConfigError where a chosen port's server has no address in the layout, or where the file
    name is taken by something else.
    """
    machines = {
        chosen.monitors.monitor_ports[where].monitor.machine for _, where in chosen.choice.placed
    }
    if len(machines) > 1 and MACHINE_PLACEHOLDER not in name:
        raise ConfigError("--mirrors", name, MIRRORS_NEED_MACHINE(sorted(machines)))
    texts = {_place(name, one): mirrors_toml(chosen, one) for one in sorted(machines)}
    for path in texts:
        _check_free(path)
    for path, text in texts.items():
        with naming_file(path):
            path.write_text(text)  # in place: it may be /dev/stdout
    return tuple(texts)


def mirrors_of(chosen: MirrorPlan, machine: str) -> tuple[MirrorConfig, ...]:
    """The [[mirror]] tables of the ports whose copies go to `machine`. Raises ConfigError as
    write_mirrors()."""
    ways: dict[tuple[str, str], set[Literal["rx", "tx", "both"]]] = {}
    for pair, where in chosen.choice.placed:
        if chosen.monitors.monitor_ports[where].monitor.machine != machine:
            continue
        if not pair.host:
            raise ConfigError("cable.hosts", pair.port, NO_HOST(pair.switch))
        ways.setdefault((f"{pair.switch} {pair.port}", pair.host), set()).add(pair.direction.value)
    return tuple(
        MirrorConfig(port=port, host=host, direction="both" if len(own) > 1 else next(iter(own)))
        for (port, host), own in ways.items()
    )


def mirrors_toml(chosen: MirrorPlan, machine: str) -> str:
    """The [[mirror]] tables of one machine as TOML text. Raises ConfigError as write_mirrors()."""
    lines = [f"{TABLES_COMMENT}: put this at the end of the job file of {_quoted(machine)}."]
    for one in mirrors_of(chosen, machine):
        told = [f"{key} = {_quoted(getattr(one, key))}" for key in ("port", "host", "direction")]
        lines += ["", "[[mirror]]", *told]
    return "\n".join(lines) + "\n"


def _place(name: str, machine: str) -> Path:
    if MACHINE_PLACEHOLDER in name and ("/" in machine or not machine.isprintable()):
        raise ConfigError("monitor.machine", machine, MACHINE_IN_FILE_NAME())
    return Path(name.replace(MACHINE_PLACEHOLDER, machine))


def _check_free(path: Path) -> None:
    with naming_file(path):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                if file.read(len(TABLES_COMMENT)) != TABLES_COMMENT.encode():
                    raise ConfigError("--mirrors", str(path), MIRRORS_FILE_TAKEN())


def _quoted(text: str) -> str:
    """A basic string of TOML 1.0, which takes JSON's escapes and no bare DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
