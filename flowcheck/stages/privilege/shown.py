"""What root showed to a chain when it started it, for commands about that chain later.

The run directory is the chain's user's, who could name any file there: what is shown again is read
from a folder that root alone writes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.errors import MALFORMED
from flowcheck.stages.privilege.account import CACHE
from flowcheck.stages.privilege.reach import Need, Use

FOLDER = CACHE / "flowcheck-shown"


class _Shown(msgspec.Struct, frozen=True):
    path: str
    use: Use


def keep(run: Path, needs: Sequence[Need]) -> None:
    """Of the chain that root starts in `run`; nowhere to keep it is no reason not to start."""
    with suppress(OSError):
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        own = _file(run)
        own.write_bytes(msgspec.json.encode([_Shown(str(n.path), n.use) for n in needs]))


def kept(run: Path) -> list[Need]:
    """What of that is there still."""
    with suppress(OSError, *MALFORMED):
        told = msgspec.json.decode(_file(run).read_bytes(), type=list[_Shown])
        return [Need(Path(one.path), one.use) for one in told if os.path.lexists(one.path)]
    return []


def _file(run: Path) -> Path:
    return FOLDER / hashlib.sha256(os.fsencode(run.resolve())).hexdigest()
