"""What a replay was started with: its record in the run directory, and the command that repeats it.

The record is written when the replay starts, so that one which is killed can be repeated as well.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, ConfigError
from flowcheck.ops.watch.state.chain_state import NO_OPTIONS, ReplayOptions
from flowcheck.private_files import write_private
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import chain_root

REPLAY_PREFIX = "flowcheck-replay-"
"""Prefix of run directories of replays without --run. They may be removed: their captures can be
replayed again."""


def reads_captures(root: Path) -> bool:
    """Whether all sources of the run in this folder end, as those of a replay do: there is no job
    to join again. False where its settings cannot be read."""
    try:
        sources = RunDir(root).settings().source
    except (ConfigError, OSError):
        return False
    return bool(sources) and not any(one.live for one in sources)


def is_temporary(run: Path) -> bool:
    """Whether this is the run directory of a replay without --run, which is removed at its end."""
    folder = Path(tempfile.gettempdir()).resolve()
    return run.parent.resolve() == folder and run.name.startswith(REPLAY_PREFIX)


def write_replay_options(run: RunDir, options: ReplayOptions) -> None:
    """Raises OSError where it cannot be written."""
    write_private(run.replay_options, msgspec.json.encode(options))


def read_replay_options(run: RunDir) -> ReplayOptions:
    """NO_OPTIONS where they cannot be read, as of a replay of an earlier release."""
    try:
        return msgspec.json.decode(run.replay_options.read_bytes(), type=ReplayOptions)
    except (OSError, *DECODE_ERRORS):
        return NO_OPTIONS


def repeating_command(root: Path, options: ReplayOptions | None = None) -> str:
    """The command that repeats the replay in this run directory, with its options and a folder for
    checkpoints. In capitals stands what is not known; a temporary run directory is not named.

    options: as the record of its end has them; None: those it was started with."""
    chain = chain_root(root)
    given = read_replay_options(RunDir(chain)) if options is None else options
    values = {
        "--job": given.job,
        "--optimizer": given.optimizer,
        "--lr": given.lr,
        "--speed": given.speed,
        "--source": given.source,
        "--jobs": given.jobs,
    }
    words = [shlex.quote(file) for file in given.files] or ["FILE..."]
    for option, value in values.items():
        words += [] if value is None else [option, shlex.quote(str(value))]
    read = " ".join([*words, *["--digests"] * given.digests])
    run = "DIR" if is_temporary(chain) else shlex.quote(str(chain))
    out = "FOLDER" if given.out is None else shlex.quote(given.out)
    return f"flowcheck replay {read} --run {run} --out {out}"
