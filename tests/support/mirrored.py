"""A switch of the lab whose mirrors are somebody else's business, and traffic that is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cabling import Tap, roce_frame

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.network_namespaces import in_namespace
from tests.unit.test_cli import flowcheck

QUIET_S = 0.0005
"""Between frames of a stream: as many as a busy machine makes, as long as it is wanted."""
PSN_AT = 14 + 20 + 8 + 8
"""In BTH, behind Ethernet, IPv4 and UDP."""


class Switch:
    """Hosts, a switch, a monitor port; verbs run in the switch's namespace, in this process."""

    def __init__(self, cluster: lab.Cluster, folder: Path, words: list[str]) -> None:
        self.cluster, self._folder, self._words = cluster, folder, words

    def verb(self, verb: str, *words: str) -> tuple[int, dict[str, object], str]:
        """Exit code, the answer of --json, standard error."""
        with in_namespace(self.cluster.switch_namespace):
            code, out, err = flowcheck(*self._command(verb, *words), "--json")
        return code, json.loads(out) if out.startswith("{") else {}, err

    def apart(self, verb: str, *words: str, path: Path | None = None) -> tuple[int, str]:
        """Exit code and all that was said, of a process of its own; its programs are looked for in
        `path` first."""
        first = f"{path}:" if path else ""
        done = subprocess.run(
            [*self._enter(), sys.executable, "-m", "flowcheck", *self._command(verb, *words)],
            env=os.environ | {"PATH": first + os.environ["PATH"], "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def run(self, *command: str) -> str:
        """Of a program of the system, in the switch's namespace."""
        words = [*self._enter(), *command]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def says(self, command: str) -> str:
        """The same, of words with spaces between."""
        return self.run(*command.split())

    def _enter(self) -> list[str]:
        return ["ip", "netns", "exec", self.cluster.switch_namespace]

    def _command(self, verb: str, *words: str) -> list[str]:
        journal = ["--journal", str(self._folder)] if "tc" in self._words else []
        return ["switch", verb, *self._words, *journal, *words]

    def frames(self, source: int, numbers: range) -> list[bytes]:
        """To the other of two hosts, each unlike all others."""
        return [roce_frame(self.cluster, source, 1 - source, n, 64 + n % 900) for n in numbers]

    def copied(self, passed: list[tuple[int, list[bytes]]], at_least: int) -> list[bytes]:
        """What leaves by the monitor while hosts send; every frame must arrive where it goes."""
        with (
            Tap(self.cluster.host_namespace(0)) as first,
            Tap(self.cluster.host_namespace(1)) as second,
            Tap(self.cluster.checkpoint_namespace) as monitor,
        ):
            ends = (first, second)
            for source, frames in passed:
                for frame in frames:
                    ends[source].send(frame)
                assert Counter(ends[1 - source].received(len(frames))) == Counter(frames)
            return monitor.received(at_least)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Frames from the first host to the second meanwhile: all arrive, once.

        In whatever order: a busy machine's veth hands frames of two processors over as it likes.
        """
        done, sent = threading.Event(), list[bytes]()
        first, at = self.frames(0, range(1))[0], PSN_AT
        with (
            Tap(self.cluster.host_namespace(0)) as sender,
            Tap(self.cluster.host_namespace(1)) as receiver,
        ):

            def send() -> None:
                while not done.wait(QUIET_S):
                    frame = first[:at] + len(sent).to_bytes(4, "big") + first[at + 4 :]
                    sender.send(frame)
                    sent.append(frame)

            thread = threading.Thread(target=send)
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()
            assert Counter(receiver.received(len(sent))) == Counter(sent)
            assert len(sent) > 20


def dying(folder: Path, program: str, pattern: str, call: int, end: str) -> Path:
    """A folder with a `program` that does what the real one does, until it is called the `call`th
    time with `pattern` in its words: then `end`, a line of shell, comes before it."""
    real = subprocess.run(["which", program], capture_output=True, text=True, check=True).stdout
    place = folder / f"{program}-{call}"
    place.mkdir()
    script = place / program
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *"{pattern}"*)\n'
        f"  echo x >> {place}/calls\n"
        f'  if [ "$(wc -l < {place}/calls)" -ge {call} ]; then {end}; fi;;\n'
        "esac\n"
        f'exec {real.strip()} "$@"\n'
    )
    script.chmod(0o755)
    return place
