"""What a lab cluster could leave on this machine, by the tools of the system."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path


def leftovers_of(name: str) -> dict[str, object]:
    """What the machine has of cluster name."""
    namespaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return {
        "namespaces": [line for line in namespaces.stdout.splitlines() if name in line],
        "files in /run": sorted(
            f"{folder}/{own}"
            for top in ("flowcheck", "netns")
            # What others take away meanwhile is passed over, unlike by Path.rglob.
            for folder, folders, files in os.walk(f"/run/{top}")
            for own in (*folders, *files)
            if name in f"{folder}/{own}"
        ),
        "mounts": [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line
        ],
        "links": sorted(line.split()[1] for line in links.stdout.splitlines()),
        "processes": [one for one in commands if f"lab/{name}/" in one],
    }


def settings() -> list[str]:
    """What a cluster with Open vSwitch may change for the whole machine; such clusters of tests
    that run side by side share one worker."""
    return [Path("/proc/sys/net/core", key).read_text() for key in ("rmem_default", "rmem_max")]
