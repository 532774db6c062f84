"""A step from elsewhere as a checkpoint in a folder here: in parallel, and on from where it was."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from flowcheck.errors import StateError, naming
from flowcheck.replica.files.check import check as check_tensors
from flowcheck.replica.files.manifest import load_manifest
from flowcheck.replica.kept.digest import sha256_file
from flowcheck.step_numbers import Step
from flowcheck.vault.persist.listing import check
from flowcheck.vault.serve.origins import Offer, Origin, open_origin
from flowcheck.vault.serve.partial import CHUNK_BYTES, Chunk, Partial, forget_notes, partial
from flowcheck.vault.serve.patience import Patience, Said

AT_ONCE = 4
Moved = Callable[[int, int], None]
"""(bytes that are there, bytes there are)."""


def fetched(
    url: str,
    step: Step | str,
    into: Path,
    token: str | None = None,
    *,
    options: dict[str, Any] | None = None,
    authority: str | None = None,
    timeout_s: float = 30.0,
    at_once: int = AT_ONCE,
    moved: Moved = lambda *_: None,
    said: Said = lambda _: None,
) -> Path:
    """`into`/step-N, whole, on disk and verified: every file by its sha256, every tensor by that of
    the manifest. What a call that was killed or cut off had is not fetched again; a folder that is
    there already is verified alone.

    said: is told at once what is tried again, for how long at most, and when it goes on.
    url: of `flowcheck serve`, or of a [persist] target with `options` for fsspec; authority: a
    file of PEM that vouches for https, None: this machine's; step: a number or
    "latest". Raises ConfigError for a URL that nothing here can open, StateError where there is no
    such step, asking fails too often (patience.py), or what came is not what was told.
    """
    origin = open_origin(url, token, options, timeout_s, authority)
    try:
        return _whole(origin, step, into, _How(at_once, moved, Patience(origin.url, said)))
    finally:
        origin.close()


@dataclass(frozen=True, slots=True)
class _How:
    at_once: int
    moved: Moved
    patience: Patience


def _whole(origin: Origin, step: Step | str, into: Path, how: _How) -> Path:
    offer: Offer = how.patience.ask(lambda: origin.find(step))
    final = into / offer.name
    total = offer.listing.size_bytes
    if final.exists():
        if check(final) != offer.listing:
            raise StateError(
                f"{final}: another checkpoint is already here; fetch into another folder"
            )
        forget_notes(final)
        how.moved(total, total)
        return final
    with naming(final), partial(into, offer.name, offer.listing) as part:
        how.moved(part.done_bytes, total)
        part.refuse_full()
        _fetch(origin, offer, part, how)
        if _damaged(part):
            _fetch(origin, offer, part, how)
        if wrong := _damaged(part):
            raise StateError(f"{origin.url}: {wrong[0]} came twice without its sha256")
        manifest = load_manifest(part.folder)
        if faults := check_tensors(part.folder, manifest, whole_files=False):
            raise StateError(f"{origin.url}: step {offer.listing.step}: {faults[0]}")
        part.finish(final)
    return final


def _fetch(origin: Origin, offer: Offer, part: Partial, how: _How) -> None:
    """Every chunk that is missing. Raises the first error there is."""
    stop, total = Event(), offer.listing.size_bytes

    def one(chunk: Chunk) -> None:
        if stop.is_set():
            return
        file, size = offer.listing.files[chunk[0]], part.size(chunk)
        begin = chunk[1] * CHUNK_BYTES
        data = how.patience.ask(lambda: origin.read(offer, file, begin, size), stop)
        part.write(chunk, data)
        how.moved(part.done_bytes, total)

    with ThreadPoolExecutor(how.at_once, "fetch") as pool:
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
