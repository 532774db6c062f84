"""Downloads a step into a checkpoint folder: in parallel, resumable, and verified."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from flowcheck.errors import StateError, naming_file
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files as check_tensors
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.replica.state_digest import sha256_file
from flowcheck.step_numbers import Step
from flowcheck.vault.download.download_source import AvailableStep, DownloadSource, open_source
from flowcheck.vault.download.partial_download import (
    CHUNK_BYTES,
    Chunk,
    PartialDownload,
    forget_notes,
    open_partial_download,
)
from flowcheck.vault.download.retry_backoff import ReportRetry, RetryPolicy
from flowcheck.vault.persist.checkpoint_listing import verify_checkpoint

AT_ONCE = 4
"""Chunks fetched at a time. A choice: more uses more of the server's connections and memory."""
ProgressCallback = Callable[[int, int], None]
"""Called with (bytes downloaded so far, bytes of the checkpoint)."""
DoubtsCallback = Callable[[tuple[Finding, ...]], None]
"""Called with what came to light behind the step's save, as the server says."""


def download_step(
    url: str,
    step: Step | str,
    into: Path,
    token: str | None = None,
    *,
    options: dict[str, Any] | None = None,
    authority: str | None = None,
    timeout_s: float = 30.0,
    at_once: int = AT_ONCE,
    moved: ProgressCallback = lambda *_: None,
    said: ReportRetry = lambda _: None,
    doubted: DoubtsCallback = lambda _: None,
) -> Path:
    """Downloads a step to `into`/step-N and returns this folder, complete, on disk and verified by
    the sha256 of every file and every tensor. Chunks that an interrupted call downloaded are not
    fetched again. A folder that already exists is only verified.

    url: of `flowcheck serve`, or of a [persist] target. step: a number, "latest" or "newest",
    which may be tainted. options:
    arguments of fsspec's file system for a [persist] target. authority: CA bundle (PEM) for https;
    None: the CAs that this machine trusts. said: called with a message when a request is tried
    again and when requests succeed again. Raises ConfigError for a URL that cannot be opened;
    StateError if there is no such step, requests fail too often (retry_backoff.py), or the
    downloaded bytes do not match their checksums.
    """
    origin = open_source(url, token, options, timeout_s, authority)
    try:
        return _whole(
            origin, step, into, _How(at_once, moved, RetryPolicy(origin.url, said), doubted)
        )
    finally:
        origin.close()


@dataclass(frozen=True, slots=True)
class _How:
    at_once: int
    moved: ProgressCallback
    patience: RetryPolicy
    doubted: DoubtsCallback


def _whole(origin: DownloadSource, step: Step | str, into: Path, how: _How) -> Path:
    offer: AvailableStep = how.patience.retry(lambda: origin.find(step))
    how.doubted(offer.doubts)
    final = into / offer.name
    total = offer.listing.size_bytes
    if final.exists():
        if verify_checkpoint(final) != offer.listing:
            raise StateError(downloads.OTHER_CHECKPOINT_HERE(final))
        forget_notes(final)
        how.moved(total, total)
        return final
    with naming_file(final), open_partial_download(into, offer.name, offer.listing) as part:
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
        for remark in origin.remarks():
            how.patience.tell(remark)
        part.finish(final)
    return final


def _fetch(origin: DownloadSource, offer: AvailableStep, part: PartialDownload, how: _How) -> None:
    """Fetches every missing chunk. Raises the first error."""
    stop, total = Event(), offer.listing.size_bytes

    def one(chunk: Chunk) -> None:
        if stop.is_set():
            return
        file, size = offer.listing.files[chunk[0]], part.size(chunk)
        begin = chunk[1] * CHUNK_BYTES
        data = how.patience.retry(lambda: origin.read(offer, file, begin, size), stop)
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
    """Names of the downloaded files with a wrong sha256. Their chunks count as missing again."""
    wrong = []
    for file in part.listing.files:
        if sha256_file(part.folder / file.name) != file.sha256:
            part.forget(file)
            wrong.append(file.name)
    return wrong
