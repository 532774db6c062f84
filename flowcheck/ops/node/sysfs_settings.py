"""Writes to a machine's settings in /sys, each printed first and logged with how to undo it.

What was found is kept in /run, because a restart forgets both it and the settings. `root` stands
for the file system; below a root other than / no command is run, and a line says so.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import StateError
from flowcheck.findings.catalog.machine_settings import (
    COMMAND_FAILED,
    NOT_A_NOTE,
    NOT_ALL_UNDONE,
    SETTING_CHANGED,
    SETTING_NOT_TAKEN,
)

NOTES = "run/flowcheck-node"
COMMAND_LIMIT_S = 30
"""Seconds a command may take. A choice: longer delays the error, shorter fails on a busy
machine."""
Say = Callable[[str], None]
Run = Callable[[Sequence[str]], str]


def run_command(words: Sequence[str]) -> str:
    """What it printed. Raises StateError where it is not there, fails, or does not end."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StateError(COMMAND_FAILED(command=" ".join(words), error=str(error))) from error
    if done.returncode:
        said = done.stderr.strip() or str(done.returncode)
        raise StateError(COMMAND_FAILED(command=" ".join(words), error=said))
    return done.stdout


class MachineSettings:
    """The settings of one machine."""

    def __init__(self, root: Path, *, say: Say = print, run: Run = run_command) -> None:
        self.root, self.say, self._run = root, say, run
        self.made_up = root.resolve() != Path("/")
        if self.made_up:
            say(f"    below {root}, a made-up root: no device changes and no command is run")

    def path(self, name: str) -> Path:
        return self.root / name

    def look(self, name: str) -> str:
        """A file's text, or the name of what a link leads to; empty where there is neither."""
        path = self.path(name)
        if path.is_symlink():
            return path.readlink().name
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def names(self, pattern: str) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern))

    def write(self, name: str, value: str) -> None:
        """Says and does it. Raises StateError with the kernel's reason."""
        self.say(f"    /{name}: {self.look(name) or '-'} -> {value or 'nothing'}")
        self._write(name, value)

    def _write(self, name: str, value: str) -> None:
        try:
            # To write alone: bind and its like refuse to be opened for reading, also by root. One
            # write(2), for the kernel takes each as a whole; a line end stands for nothing.
            file = os.open(self.path(name), os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(file, (value or "\n").encode())
            finally:
                os.close(file)
        except OSError as error:
            what = SETTING_NOT_TAKEN(value=repr(value), file=f"/{name}", error=error.strerror)
            raise StateError(what) from error

    def run(self, words: Sequence[str]) -> str:
        """Says and runs a command, but below a made-up root."""
        self.say(f"    {' '.join(words)}")
        return "" if self.made_up and self._run is run_command else self._run(words)

    def ask(self, words: Sequence[str]) -> str:
        """As `run`, of a command that changes nothing; empty where it cannot be had."""
        try:
            return "" if self.made_up and self._run is run_command else self._run(words)
        except StateError:
            return ""


class UndoLog:
    """How what was done to one device is undone, on disk before it is done."""

    def __init__(self, sysfs: MachineSettings, device: str) -> None:
        self.sysfs, self.path = sysfs, sysfs.path(f"{NOTES}/{device}.json")
        self._entries: list[dict[str, Any]] = []
        if self.path.exists():
            try:
                self._entries = json.loads(self.path.read_text())
            except ValueError as error:
                raise StateError(NOT_A_NOTE(self.path)) from error

    def note(self, entry: dict[str, Any]) -> None:
        """The first of one target stays: it tells what was there before we came."""
        if entry not in self._entries:
            self._entries.append(entry)
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            write_atomically(self.path, json.dumps(self._entries, indent=1).encode())

    def put(self, name: str, value: str) -> None:
        """Sets a file that keeps its value, unless it has it."""
        was = self.sysfs.look(name)
        if was == value:
            return
        self.remember(name)
        self.sysfs.write(name, value)

    def remember(self, name: str) -> None:
        """What a file says now, unless that was noted before."""
        if not any(entry.get("write") == name for entry in self._entries):
            was = self.sysfs.look(name)
            self.note({"write": name, "value": "" if was == "(null)" else was})

    def tell(self, name: str, value: str, undo: tuple[str, str], when: tuple[str, str]) -> None:
        """Writes to a file that does something. undo: file and value that take it back; when:
        file and what it says while there is something to take back."""
        self.note({"write": undo[0], "value": undo[1], "when": list(when)})
        self.sysfs.write(name, value)

    def command(self, words: Sequence[str], undo: Sequence[str]) -> None:
        if undo:
            self.note({"command": list(undo)})
        self.sysfs.run(words)

    def undo(self) -> bool:
        """Takes back what was noted, the last first; whether there was anything. An entry that
        fails is said, the rest goes on, and all notes stay. Raises StateError then."""
        if not self._entries:
            return False
        failed = []
        for entry in reversed(self._entries):
            try:
                self._take_back(entry)
            except StateError as error:
                self.sysfs.say(f"    {error}")
                failed.append(error.finding)
        if failed:
            raise StateError(NOT_ALL_UNDONE(first=failed[0], path=self.path))
        self.path.unlink()
        self._entries = []
        return True

    def _take_back(self, entry: dict[str, Any]) -> None:
        if "command" in entry:
            self.sysfs.run(entry["command"])
            return
        if "expect" in entry:
            name, value = entry["expect"]
            if self.sysfs.look(name) != value:
                now = self.sysfs.look(name) or "nothing"
                raise StateError(SETTING_CHANGED(file=f"/{name}", wanted=value, value=now))
            return
        name, value = entry["write"], entry["value"]
        if "when" in entry:
            there = self.sysfs.look(entry["when"][0]) == entry["when"][1]
        else:
            now = self.sysfs.look(name)
            there = self.sysfs.path(name).exists() and ("" if now == "(null)" else now) != value
        if there:
            self.sysfs.write(name, value)


def sysfs_of_environment() -> MachineSettings:
    """SYSROOT in the environment: a made-up root."""
    return MachineSettings(Path(os.environ.get("SYSROOT") or "/"))
