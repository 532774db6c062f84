"""Uploads a large file to S3 in parts, several at a time. Parts that are there already are not sent
again.

S3 reports a part's md5 as its ETag. The ETag of the whole object is the md5 of all parts' md5s,
followed by the number of parts (Amazon S3 User Guide, "Checking object integrity"). Stores that
encrypt with keys of their own report other ETags; then the whole object is read back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowcheck.vault.persist.checkpoint_listing import ListedFile
from flowcheck.vault.persist.rate_limit import TransferPace
from flowcheck.vault.persist.store_errors import NO_SUCH_UPLOAD, store_codes
from flowcheck.vault.persist.upload_journal import Upload, UploadJournal

PART_BYTES = 32 << 20
"""Bytes of a part. S3 requires 5 MiB or more. A choice: larger sends more again after a fault,
smaller costs requests."""
PARTS_MAX = 10_000
"""Most parts of an object (Amazon S3 User Guide, "Multipart upload limits")."""
AT_ONCE = 4
"""Parts sent at a time. A choice: more uses more connections and memory (PART_BYTES each)."""


def upload_in_parts(
    fs: Any, where: str, source: Path, file: ListedFile, journal: UploadJournal, pace: TransferPace
) -> str:
    """Uploads `source` to `where`, a bucket/key. Returns the ETag that the object has if the
    store's ETags are md5s."""
    bucket, key, _ = fs.split_path(where)
    place = {"Bucket": bucket, "Key": key}
    upload = journal.upload(file)
    there = _parts(fs, place, upload) if upload is not None else None
    if upload is None or there is None:
        made = fs.call_s3("create_multipart_upload", **place)
        size = max(PART_BYTES, -(-file.size_bytes // PARTS_MAX))
        upload = Upload(id=made["UploadId"], sha256=file.sha256, part_bytes=size)
        journal.begin(file, upload)
        there = {}
    md5s = _send_parts(fs, place, source, file, upload, there, journal, pace)
    parts = [{"PartNumber": n, "ETag": f'"{upload.tags[n]}"'} for n in sorted(md5s)]
    own = {"UploadId": upload.id, "MultipartUpload": {"Parts": parts}}
    fs.call_s3("complete_multipart_upload", **place, **own)
    whole = b"".join(md5s[number] for number in sorted(md5s))
    return f"{hashlib.md5(whole, usedforsecurity=False).hexdigest()}-{len(md5s)}"


def abort_upload(fs: Any, where: str, upload: Upload) -> None:
    """Deletes the parts of an unfinished upload."""
    bucket, key, _ = fs.split_path(where)
    with suppress(FileNotFoundError):  # ended or given up before
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)


def _send_parts(
    fs: Any,
    place: dict[str, str],
    source: Path,
    file: ListedFile,
    upload: Upload,
    there: dict[int, str],
    journal: UploadJournal,
    pace: TransferPace,
) -> dict[int, bytes]:
    """Sends the parts that are missing. Returns {number of the part, from 1: md5} of all parts."""

    def one(number: int, begin: int, size: int) -> bytes:
        data = os.pread(descriptor, size, begin)
        md5 = hashlib.md5(data, usedforsecurity=False)
        if there.get(number) in (md5.hexdigest(), upload.tags.get(number, "")):
            upload.tags[number] = there[number]
            pace.note_skipped(size)
            return md5.digest()
        pace.wait_to_send(size)
        own = {"PartNumber": number, "UploadId": upload.id, "Body": data}
        tag = fs.call_s3("upload_part", **place, **own)["ETag"].strip('"')
        journal.note_part(upload, number, tag)
        pace.note_moved(size)
        return md5.digest()

    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    pool = ThreadPoolExecutor(AT_ONCE, "parts")
    try:
        told: dict[int, Future[bytes]] = {}
        for number, (begin, size) in enumerate(_part_ranges(file.size_bytes, upload.part_bytes), 1):
            told[number] = pool.submit(one, number, begin, size)
        wait(told.values(), return_when=FIRST_EXCEPTION)
        for future in told.values():
            future.cancel()
        failed = [f for f in told.values() if f.done() and not f.cancelled() and f.exception()]
        if failed:
            failed[0].result()
        return {number: future.result() for number, future in told.items()}
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(descriptor)


def _part_ranges(size_bytes: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, size_bytes, part_bytes):
        yield begin, min(part_bytes, size_bytes - begin)


def _parts(fs: Any, place: dict[str, str], upload: Upload) -> dict[int, str] | None:
    """{number: ETag} of the parts at the store; None if the store does not know the upload."""
    found: dict[int, str] = {}
    marker = 0
    while True:
        try:
            own = {"UploadId": upload.id, "PartNumberMarker": marker}
            told = fs.call_s3("list_parts", **place, **own)
        except FileNotFoundError:
            return None
        except OSError as error:
            if NO_SUCH_UPLOAD in store_codes(error):
                return None
            raise
        for part in told.get("Parts", []):
            found[int(part["PartNumber"])] = part["ETag"].strip('"')
        if not told.get("IsTruncated"):
            return found
        marker = int(told["NextPartNumberMarker"])
