"""Files held against their manifest: what is not as it was written is named, tensors by name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flowcheck.replica.files.manifest import Manifest, TensorSum
from flowcheck.replica.files.sums import Span, around, feed, of_spans

AROUND = "what lies around its tensors is not what was written"
WHOLE = "is not the file that was written"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as the manifest says."""

    file: str
    why: str
    tensor: str = ""
    """Its label; empty where it is of no tensor."""

    def __str__(self) -> str:
        return f"{self.tensor or self.file}: {self.why}" + (
            f" ({self.file})" if self.tensor else ""
        )


def check(root: Path, manifest: Manifest, *, whole_files: bool = True) -> list[Fault]:
    """What of the files below `root` is not as the manifest says, in its order; [] if nothing.

    whole_files: also the sums that sha256sum prints; without them every byte is still read once.
    """
    faults = []
    sizes: dict[str, int] = {}
    wanted = dict(manifest.files) or dict.fromkeys(manifest.sha256)
    for name, want in wanted.items():
        path, why = root / name, ""
        if not _inside(root, name) or not path.is_file():
            sizes[name], why = 0, "is missing"
        else:
            sizes[name] = path.stat().st_size
            if want is not None and sizes[name] != want.bytes:
                why = f"is of {sizes[name]:,} bytes, not {want.bytes:,}"
        if why:
            faults.append(Fault(name, why))
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1), "check") as pool:
        told = {
            label: pool.submit(_tensor_fault, root, label, one, sizes)
            for label, one in manifest.tensors.items()
        }
        files = {
            name: pool.submit(_file_fault, root, name, manifest, whole_files)
            for name in wanted
            if sizes[name] and not any(fault.file == name for fault in faults)
        }
        tensors = [found for one in told.values() if (found := one.result()) is not None]
        named = {fault.file for fault in tensors}
        faults += tensors
        for name, later in files.items():
            why = later.result()
            if why and (name not in named or why == AROUND):
                faults.append(Fault(name, why))
    return faults


def _file_fault(root: Path, name: str, manifest: Manifest, whole_files: bool) -> str:
    want = manifest.files.get(name)
    try:
        with (root / name).open("rb", buffering=0) as file:
            number = file.fileno()
            size_bytes = os.fstat(number).st_size
            if want is None:
                found = of_spans(number, [(0, size_bytes)])
                return "" if found == manifest.sha256[name] else WHOLE
            spans = around(size_bytes, _spans_in(name, manifest.tensors))
            if of_spans(number, spans) != want.around:
                return AROUND
            if whole_files and of_spans(number, [(0, size_bytes)]) != want.sha256:
                return WHOLE
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def _spans_in(name: str, tensors: Mapping[str, TensorSum]) -> list[Span]:
    return [(at, count) for t in tensors.values() for file, at, count in t.at if file == name]


def _tensor_fault(root: Path, label: str, one: TensorSum, sizes: Mapping[str, int]) -> Fault | None:
    whole = hashlib.sha256()
    for name, first, count in one.at:
        held = sizes.get(name)
        if held is None:
            return Fault(name, "lies in a file that the manifest does not list", label)
        if first < 0 or count < 0 or first + count > held:
            return Fault(name, "is cut off: the file ends before it does", label)
        with suppress(OSError), (root / name).open("rb", buffering=0) as file:
            feed(whole, file.fileno(), first, count)
    if whole.hexdigest() != one.sha256:
        return Fault(one.at[0][0] if one.at else "", "is not what was written", label)
    return None


def _inside(root: Path, name: str) -> bool:
    """A manifest names files below its own folder only."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts
