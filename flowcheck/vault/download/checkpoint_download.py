"""Downloads a step into a checkpoint folder: in parallel, resumed where it was cut, verified."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from flowcheck.errors import StateError, naming_file
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files as check_tensors
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.replica.state_digest import sha256_file
from flowcheck.step_numbers import Step
from flowcheck.vault.download.download_source import AvailableStep, DownloadSource, open_origin
from flowcheck.vault.download.partial_download import (
    CHUNK_BYTES,
    Chunk,
    PartialDownload,
    forget_notes,
    partial,
)
from flowcheck.vault.download.retry_backoff import ReportRetry, RetryPolicy
from flowcheck.vault.persist.checkpoint_listing import verify_checkpoint

AT_ONCE = 4
"""Chunks fetched at once. A choice: more uses more connections of the server's and memory."""
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
    said: ReportRetry = lambda _: None,
) -> Path:
    """`into`/step-N, whole, on disk and verified: every file by its sha256, every tensor by that of
    the manifest. What a call that was killed or cut off had is not fetched again; a folder that is
    there already is verified alone.

    said: is told at once what is tried again, for how long at most, and when it goes on.
    url: of `flowcheck serve`, or of a [persist] target with `options` for fsspec; authority: a
    file of PEM that vouches for https, None: this machine's; step: a number or
    "latest". Raises ConfigError for a URL that nothing here can open, StateError where there is no
    such step, asking fails too often (retry_backoff.py), or what came is not what was told.
    """
    origin = open_origin(url, token, options, timeout_s, authority)
    try:
        return _whole(origin, step, into, _How(at_once, moved, RetryPolicy(origin.url, said)))
    finally:
        origin.close()


@dataclass(frozen=True, slots=True)
class _How:
    at_once: int
    moved: Moved
    patience: RetryPolicy


def _whole(origin: DownloadSource, step: Step | str, into: Path, how: _How) -> Path:
    offer: AvailableStep = how.patience.ask(lambda: origin.find(step))
    final = into / offer.name
    total = offer.listing.size_bytes
    if final.exists():
        if verify_checkpoint(final) != offer.listing:
            raise StateError(downloads.OTHER_CHECKPOINT_HERE(final))
        forget_notes(final)
        how.moved(total, total)
        return final
    with naming_file(final), partial(into, offer.name, offer.listing) as part:
        how.moved(part.done_bytes, total)
        part.refuse_full()
        _fetch(origin, offer, part, how)
        if _damaged(part):
            _fetch(origin, offer, part, how)
        if wrong := _damaged(part):
            raise StateError(downloads.CHECKSUM_MISMATCH(url=origin.url, file=wrong[0]))
        manifest = load_manifest(part.folder)
        if faults := check_tensors(part.folder, manifest, whole_files=False):
            fault, of = faults[0].finding, offer.listing.step
            raise StateError(downloads.DAMAGED_STEP(url=origin.url, step=of, fault=fault))
        part.finish(final)
    return final


def _fetch(origin: DownloadSource, offer: AvailableStep, part: PartialDownload, how: _How) -> None:
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


def _damaged(part: PartialDownload) -> list[str]:
    """Files that do not have their sha256; they are to come again."""
    wrong = []
    for file in part.listing.files:
        if sha256_file(part.folder / file.name) != file.sha256:
            part.forget(file)
            wrong.append(file.name)
    return wrong
