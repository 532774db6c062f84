"""Names of network namespaces that killed tests left behind."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

FOLDER = Path("/run/netns")
_OURS = re.compile(r"fc(?:thosts([0-9]+)-(?:[0-9]+|sw)|test([0-9]+))")
"""As support/hosts.py and support/veth.py name them: by the process that makes them."""


def sweep() -> None:
    """Takes away those whose maker is dead and in which nobody lives: a namespace, or the file that
    is left of its name where its mount went. Needs root."""
    if not FOLDER.is_dir():
        return
    stale = [path for path in FOLDER.iterdir() if _is_stale(path.name)]
    lived = _lived_in() if stale else set()
    for path in stale:
        try:
            found = path.stat()
        except OSError:  # another sweep
            continue
        if found.st_dev != Path("/proc/self/ns/net").stat().st_dev:
            path.unlink(missing_ok=True)
        elif (found.st_dev, found.st_ino) not in lived:
            command = ["ip", "netns", "del", path.name]
            subprocess.run(command, capture_output=True, timeout=20, check=False)


def _is_stale(name: str) -> bool:
    """Of a maker that is no more; one that lives makes it just now."""
    match = _OURS.fullmatch(name)
    return match is not None and not Path("/proc", match[1] or match[2]).exists()


def _lived_in() -> set[tuple[int, int]]:
    """Namespaces that some thread of some process is in."""
    found = set()
    for own in Path("/proc").glob("[0-9]*/task/[0-9]*/ns/net"):
        try:
            status = own.stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found


def dead() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert not Path("/proc", str(process.pid)).exists() and process.pid != os.getpid()
    return process.pid
