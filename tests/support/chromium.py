"""A real Chromium without a window, spoken to over its own pipe (DevTools protocol)."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium")
MISSING = "chromium is not installed (apt-get install chromium)"
ANSWER_S = 30.0
"""For one command; a loaded machine takes seconds to start a tab."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--mute-audio",
)
"""--no-sandbox: as root it starts with none else."""


class Pipe:
    """DevTools messages, each ended by a zero byte: commands in, answers and events out."""

    def __init__(self, into: int, out: int) -> None:
        self.into, self.out, self.number, self.rest = into, out, 0, b""
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Its result. Raises RuntimeError for a refusal, TimeoutError for none."""
        self.number += 1
        asked = {"id": self.number, "method": method, "params": params}
        if session is not None:
            asked["sessionId"] = session
        os.write(self.into, json.dumps(asked).encode() + b"\0")
        limit = time.monotonic() + ANSWER_S
        while True:
            message = self._message(limit, method)
            if message.get("id") != self.number:
                self.events.append(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            else:
                result: dict[str, Any] = message["result"]
                return result

    def _message(self, limit: float, method: str) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.out], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer {method} in {ANSWER_S:.0f} s")
            read = os.read(self.out, 1 << 20)
            if not read:
                raise RuntimeError(f"Chromium ended before it answered {method}")
            self.rest += read
        text, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Tab:
    """One page."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.target = pipe.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = pipe.ask("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.pipe.ask(method, self.session, **params)

    def value(self, script: str) -> Any:
        """Of an expression, there. Raises AssertionError where it throws."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        self.size(width, height)
        self.ask("Page.navigate", url=url)

    def size(self, width: int, height: int) -> None:
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **shape)

    def until(self, script: str, seconds: float = 20.0) -> float:
        """Waits for a true value; how long it took, in seconds. Raises AssertionError."""
        begun = time.monotonic()
        while not self.value(script):
            spent = time.monotonic() - begun
            assert spent < seconds, f"not true within {seconds} s: {script}\n{self.text()[:2000]}"
            select.select([], [], [], 0.05)
        return time.monotonic() - begun

    def text(self) -> str:
        return str(self.value("document.body.innerText"))

    def complaints(self) -> list[str]:
        """What the browser logged, threw or asked a person, since the tab was opened: policies that
        were violated among them."""
        self.value("0")  # what was said before it is here now
        wanted = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        mine = [one for one in self.pipe.events if one.get("sessionId") == self.session]
        asked = "Page.javascriptDialogOpening"
        return [json.dumps(one["params"]) for one in mine if one["method"] in (*wanted, asked)]

    def names(self, role: str) -> list[str]:
        """Of all parts of that role, as a reader hears them."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        told = [one for one in nodes if not one["ignored"] and one["role"]["value"] == role]
        return [one.get("name", {}).get("value", "") for one in told]

    def picture(self, path: Path, whole: bool = True) -> None:
        """As PNG."""
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))

    def close(self) -> None:
        self.pipe.ask("Target.closeTarget", targetId=self.target)


def above(descriptor: int) -> int:
    """The same, numbered 10 or more."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return moved


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Callable[[], Tab]]:
    """Makes tabs. profile: a folder that may be thrown away."""
    assert PATH is not None, MISSING
    (theirs_in, into), (out, theirs_out) = os.pipe(), os.pipe()
    home = [f"--user-data-dir={profile}", f"--crash-dumps-dir={profile}", "about:blank"]
    # It reads descriptor 3 and writes 4: theirs are first called something that neither is.
    theirs_in, theirs_out = above(theirs_in), above(theirs_out)
    shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
    process = subprocess.Popen(
        ["bash", "-c", shell, "chromium", PATH, *FLAGS, *home],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(profile)},
    )
    os.close(theirs_in)
    os.close(theirs_out)
    pipe = Pipe(into, out)
    try:
        yield lambda: Tab(pipe)
        with contextlib.suppress(RuntimeError, TimeoutError, OSError):
            pipe.ask("Browser.close")
    finally:
        os.close(into)
        os.close(out)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
