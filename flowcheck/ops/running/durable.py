"""What a chain's checkpoints are, for `flowcheck status`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import msgspec
from rich.markup import escape

from flowcheck.stages.rundir import RunDir
from flowcheck.vault.persist import told

FRESH_S = 90.0


def read(where: RunDir) -> dict[str, Any] | None:
    """What its stage told last, with the checkpoint's age; None of a chain that saves none."""
    if where.settings().persist is None:
        return None
    found = told.read(where.persisted)
    if found is None:
        return {"durable_step": None, "age_s": None, "error": "", "attempts": 0, "phase": ""}
    age_s = round(time.time() - found.durable_s, 1) if found.durable_step is not None else None
    return {**msgspec.to_builtins(found), "age_s": age_s}


def served(where: RunDir) -> str | None:
    """The URL its steps are served at; None where they are not."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(where.served.read_bytes(), type=dict[str, str]).get("url")
    return None


def sentences(state: dict[str, Any] | None, newest: int) -> list[str]:
    """For people. newest: the replica's step."""
    if state is None:
        return []
    if state["durable_step"] is None:
        said = ["no checkpoint is durable yet"]
    else:
        behind = max(0, newest - state["durable_step"])
        said = [
            f"last durable checkpoint: step {state['durable_step']}, {_ago(state['age_s'])} ago, "
            f"{behind} steps behind, in {state['target']}/{state['durable_name']}"
        ]
    if state["phase"]:
        share = ""
        if state["total_bytes"]:
            share = f", {100 * state['done_bytes'] / state['total_bytes']:.0f} % there"
        said.append(f"  {state['phase']} step {state['step']}{share}")
    if state["attempts"]:
        times = f"{state['attempts']} attempts" if state["attempts"] > 1 else "an attempt"
        said.append(f"[red]saving fails[/] ({times}): {escape(state['error'])}")
    return said


def _ago(seconds: float) -> str:
    if seconds < FRESH_S:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
