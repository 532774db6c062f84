"""python -m flowcheck: a verb, or a stage as its supervisor starts it."""

from __future__ import annotations

import sys


def _stage() -> None:
    """`flowcheck stage NAME ... --parent PID` without typer and the words of all other verbs, which
    take every stage longer to load than what a capture or a parser needs."""
    from argparse import ArgumentParser
    from pathlib import Path

    from flowcheck.stages.privilege.drop_privileges import drop_for_stage, note_program
    from flowcheck.stages.supervisor.stage_main import run_stage

    note_program()
    parser = ArgumentParser(prog="flowcheck stage", allow_abbrev=False)
    parser.add_argument("name")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--checkpoint-socket", type=int)
    told = parser.parse_args(sys.argv[2:])
    drop_for_stage(told.name, told.run, told.number)
    code = run_stage(told.name, told.run, told.number, told.parent)
    if told.checkpoint_socket is not None and code == 0:
        from flowcheck.ops.lifecycle.shutdown_checkpoint import run_checkpoint_helper

        run_checkpoint_helper(told.checkpoint_socket)
    sys.exit(code)


def main() -> None:
    if sys.argv[1:2] == ["stage"] and "--parent" in sys.argv:
        from flowcheck.private_files import set_private_umask

        set_private_umask()
        from flowcheck.ops.command_errors import exit_on_error

        exit_on_error(_stage)
    else:
        from flowcheck.cli import main as verb

        verb()


if __name__ == "__main__":
    main()
