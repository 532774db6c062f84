"""A step from elsewhere as a checkpoint in a folder here: in parallel, and on from where it was."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from flowcheck.errors import StateError, naming
from flowcheck.replica.files.check import check as check_tensors
from flowcheck.replica.files.manifest import load_manifest
from flowcheck.replica.kept.digest import sha256_file
from flowcheck.vault.persist.listing import check
from flowcheck.vault.serve.origins import Busy, Offer, Origin, Transient, open_origin
from flowcheck.vault.serve.partial import CHUNK_BYTES, Chunk, Partial, partial

AT_ONCE = 4
TRIES = 8
"""Of one chunk, or of the first question, before it is given up."""
WAIT_MAX_S = 10.0
BUSY_S = 600.0
"""A server that too many ask may say so for so long."""
Told = TypeVar("Told")
Moved = Callable[[int, int], None]
"""(bytes that are there, bytes there are)."""


def fetched(
    url: str,
    step: int | str,
    into: Path,
    token: str | None = None,
    *,
    options: dict[str, Any] | None = None,
    timeout_s: float = 30.0,
    at_once: int = AT_ONCE,
    moved: Moved = lambda *_: None,
) -> Path:
    """`into`/step-N, whole, on disk and verified: every file by its sha256, every tensor by that of
    the manifest. What a call that was killed or cut off had is not fetched again; a folder that is
    there already is verified alone.

    url: of `flowcheck serve`, or of a [persist] target with `options` for fsspec; step: a number or
    "latest". Raises ConfigError for a URL that nothing here can open, StateError where there is no
    such step, the connection fails TRIES times at one place, or what came is not what was told.
    """
    origin = open_origin(url, token, options, timeout_s)
    try:
        return _whole(origin, step, into, at_once, moved)
    finally:
        origin.close()


def _whole(origin: Origin, step: int | str, into: Path, at_once: int, moved: Moved) -> Path:
    offer: Offer = _patiently(lambda: origin.find(step), origin.url)
    final = into / offer.name
    total = offer.listing.size_bytes
    if final.exists():
        if check(final) != offer.listing:
            raise StateError(
                f"{final}: another checkpoint is already here; fetch into another folder"
            )
        moved(total, total)
        return final
    with naming(final), partial(into, offer.name, offer.listing) as part:
        moved(part.done_bytes, total)
        _fetch(origin, offer, part, at_once, moved)
        if _damaged(part):
            _fetch(origin, offer, part, at_once, moved)
        if wrong := _damaged(part):
            raise StateError(f"{origin.url}: {wrong[0]} came twice without its sha256")
        manifest = load_manifest(part.folder)
        if faults := check_tensors(part.folder, manifest, whole_files=False):
            raise StateError(f"{origin.url}: step {offer.listing.step}: {faults[0]}")
        part.finish(final)
    return final


def _fetch(origin: Origin, offer: Offer, part: Partial, at_once: int, moved: Moved) -> None:
    """Every chunk that is missing. Raises the first error there is."""
    stop, total = Event(), offer.listing.size_bytes

    def one(chunk: Chunk) -> None:
        if stop.is_set():
            return
        file, size = offer.listing.files[chunk[0]], part.size(chunk)
        begin = chunk[1] * CHUNK_BYTES
        data = _patiently(lambda: origin.read(offer, file, begin, size), origin.url, stop)
        part.write(chunk, data)
        moved(part.done_bytes, total)

    with ThreadPoolExecutor(at_once, "fetch") as pool:
        told = [pool.submit(one, chunk) for chunk in part.missing()]
        try:
            done, _ = wait(told, return_when=FIRST_EXCEPTION)
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        failed = [future for future in done if future.exception() is not None]
        if failed:
            stop.set()
            pool.shutdown(cancel_futures=True)
            failed[0].result()
    origin.close()  # others may wait for them while files are read here


def _damaged(part: Partial) -> list[str]:
    """Files that do not have their sha256; they are to come again."""
    wrong = []
    for file in part.listing.files:
        if sha256_file(part.folder / file.name) != file.sha256:
            part.forget(file)
            wrong.append(file.name)
    return wrong


def _patiently(ask: Callable[[], Told], url: str, stop: Event | None = None) -> Told:
    """`ask`, again where that may help. Raises StateError when it did not."""
    waiting = stop or Event()
    until_s, failed = time.monotonic() + BUSY_S, 0
    while True:
        try:
            return ask()
        except Busy as error:
            last: Transient = error
            wait_s = random.uniform(0.2, 2.0)  # so that not all come back at once
            if time.monotonic() > until_s:
                raise StateError(f"{url}: is busy for {BUSY_S:.0f} s: {last}") from last
        except Transient as error:
            last, wait_s = error, min(WAIT_MAX_S, 0.2 * 2.0**failed)
            failed += 1
            if failed == TRIES:
                raise StateError(f"{url}: cannot be fetched from, {TRIES} times: {last}") from last
        if waiting.wait(wait_s):
            raise StateError(f"{url}: given up: {last}") from last
