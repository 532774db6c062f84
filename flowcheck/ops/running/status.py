"""`flowcheck status`: how far a chain is, or what it had come to, as `watch` and `top` have it."""

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


def run(root: Path, *, svg: Path | None = None, previous: bool = False, as_json: bool) -> int:
    """Prints the state of the chain in `root`, also of one that has ended; previous: of the one
    before; svg: a picture of the job it learned is written there. Raises ConfigError where no
    chain was started, or no job is to be drawn."""
    where = RunDir(root)
    try:
        if previous:
            where = _before(where)
        where.settings()
    except ConfigError as error:
        if as_json:
            print(json.dumps({"run": str(where.root), "error": error.right}))
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
    lives = state.stages and all(stage.pid is not None for stage in state.stages)
    return 0 if lives else 1


def _before(where: RunDir) -> RunDir:
    """The records of the run before."""
    before = RunDir(where.previous)
    if not before.config.exists():
        why = "holds no run before: the records of one are kept there when the next one starts"
        raise ConfigError("--previous", str(before.root), why)
    return before


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
