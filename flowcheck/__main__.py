"""python -m flowcheck: a verb, or a stage as its supervisor starts it."""

from __future__ import annotations

import sys


def _stage() -> None:
    """`flowcheck stage NAME ... --parent PID` without typer and the words of all other verbs, which
    take every stage longer to load than what a capture or a parser needs."""
    from argparse import ArgumentParser
    from pathlib import Path

    from flowcheck.stages.chain.launch import run_stage
    from flowcheck.stages.privilege.descend import begin, for_stage

    begin()
    parser = ArgumentParser(prog="flowcheck stage", allow_abbrev=False)
    parser.add_argument("name")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--lend", type=int)
    told = parser.parse_args(sys.argv[2:])
    for_stage(told.name, told.run, told.number)
    code = run_stage(told.name, told.run, told.number, told.parent)
    if told.lend is not None and code == 0:
        from flowcheck.ops.running.saved import lend_this

        lend_this(told.lend)
    sys.exit(code)


def main() -> None:
    if sys.argv[1:2] == ["stage"] and "--parent" in sys.argv:
        from flowcheck.private_files import keep_private

        keep_private()
        from flowcheck.ops.running.refused import in_words

        in_words(_stage)
    else:
        from flowcheck.cli import main as verb

        verb()


if __name__ == "__main__":
    main()
