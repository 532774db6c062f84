"""`flowcheck status`: how far a running chain is, as `watch` and `top` have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.ops.analysis.diagram import svg_of
from flowcheck.ops.analysis.learned import communicators_of_job
from flowcheck.ops.picture_file import write_picture
from flowcheck.ops.running import leftovers
from flowcheck.ops.running.told import shown
from flowcheck.ops.watch.reading import Reader
from flowcheck.ops.watch.state import State
from flowcheck.plain import plain
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job_file import decode_job


def run(root: Path, *, svg: Path | None = None, as_json: bool) -> int:
    """Prints the state of the chain in `root`; svg: a picture of the job it learned is written
    there. Raises ConfigError where there is no chain, or no job to draw."""
    where = RunDir(root)
    try:
        _refuse_ended(where)
    except ConfigError as error:
        if as_json:
            was: dict[str, Any] = msgspec.to_builtins(read(where))
            print(json.dumps(was | {"run": str(root), "error": error.right}))
        raise
    if svg is not None:
        _draw(where, svg)
    state, left = read(where), [one for one in leftovers.find() if one.run != root.resolve()]
    if as_json:
        told: dict[str, Any] = msgspec.to_builtins(state)
        own = [one.sentence for one in leftovers.by_chain(left) if one.mine]
        print(json.dumps(told | {"leftovers": own}, indent=1))
    else:
        shown(state, leftovers.in_short(left))
    return 0 if all(stage.pid is not None for stage in state.stages) else 1


def list_leftovers(*, as_json: bool) -> int:
    """What chains that were killed left on this machine, those of other users as well."""
    found = [one.sentence for one in leftovers.by_chain(leftovers.find())]
    if as_json:
        print(json.dumps({"leftovers": found}))
    else:
        print("\n".join(map(plain, found)) or "no killed chain left anything")
    return 0


def read(where: RunDir) -> State:
    """The chain's state just now."""
    return Reader(where.root).state()


def _draw(where: RunDir, svg: Path) -> None:
    if not where.learned_job.exists():
        raise ConfigError("--svg", str(svg), "the job is not learned yet: there is nothing to draw")
    job = decode_job(where.learned_job.read_bytes())
    write_picture(svg, svg_of(communicators_of_job(job), f"The job followed in {where.root}"))


def _refuse_ended(where: RunDir) -> None:
    """Raises ConfigError where there is no chain to tell of."""
    where.settings()
    if where.holds_memory and where.memory.exists():
        return
    ended = "has ended"
    if where.holds_memory:
        ended = "was killed, and its shared memory is gone, as after a restart of this machine"
    why = f"the chain that ran there {ended}; its logs and steps.jsonl are in {where.root}"
    raise ConfigError("run", str(where.root), why)
