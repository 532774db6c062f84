"""What strangers' packets cost the parser and the extractor, counted in basic blocks of the core
that ran: the same on every machine and under any load.

`python -m support.work_count NAME` on a build of `build()` prints {size: blocks per packet}.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COUNTER = Path(__file__).resolve().with_suffix(".c")
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
import build_ffi
from pathlib import Path
build_ffi.STEP, build_ffi.STEP_HEADERS = build_ffi.CORE / "none", ()  # half the time, not counted
ffi = build_ffi.core_builder(("-O1", "-fsanitize-coverage=trace-pc"))
ffi.cdef("uint64_t fc_steps_done(void);")
name, source, extension, words = ffi._assigned_source
words["sources"].append(sys.argv[3])
ffi._assigned_source = name, source + "uint64_t fc_steps_done(void);", extension, words
build_ffi.compile_into(ffi, Path(sys.argv[2]))
"""


def build(folder: Path) -> Path:
    """A copy of the package whose core counts; what PYTHONPATH needs."""
    package = folder / "flowcheck"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(REPOSITORY / "flowcheck", package, ignore=ignored)
    words = [str(REPOSITORY / "dpdk_ext"), str(package), str(COUNTER)]
    command = [sys.executable, "-c", BUILD, *words]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def counted(built: Path, name: str) -> dict[int, float]:
    """{size: blocks per packet} of a measurement below."""
    path = os.pathsep.join([str(built), str(REPOSITORY / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", "support.work_count", name],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "FLOWCHECK_COPY": "plain"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return {int(size): float(blocks) for size, blocks in json.loads(done.stdout).items()}


PACKETS = 200
"""Of a stranger, or of the job, whose cost is taken."""


def steps(work: Callable[[], object]) -> int:
    from flowcheck._core import lib

    before = int(lib.fc_steps_done())
    work()
    return int(lib.fc_steps_done()) - before


def _parsed(shm: Path, before: Iterable[object], stranger: list[object]) -> float:
    from support.transport import parsing

    with parsing(shm, slots=8192, icrc_every=0) as run:
        run.put([packet.frame() for packet in before])  # type: ignore[attr-defined]
        run.parser.parse(1 << 20)
        run.put([packet.frame() for packet in stranger])  # type: ignore[attr-defined]
        return steps(lambda: run.parser.parse(1 << 20)) / len(stranger)


def old_psns(shm: Path, back: int) -> float:
    """Of a packet whose PSN lies so many messages back."""
    from support.transport import ONLY, Packet

    job = [Packet(ONLY, n, bytes(64), va=n, rkey=7, length=64) for n in range(2100)]
    return _parsed(shm, job, [replace(job[-back], payload=bytes(64)) for _ in range(PACKETS)])


def refusals(shm: Path, back: int) -> float:
    """Of a NAK that ends the queue pair, each of an older request, after so many."""
    from support.transport import ACK, ONLY, Packet

    job = [Packet(ONLY, n, bytes(64), va=n, rkey=7, length=64) for n in range(2100)]
    nak = Packet(
        ACK, 0, syndrome=0x62, dest_qp=0x22, source="10.0.0.2", destination="10.0.0.1", msn=1
    )
    first = [replace(nak, psn=2100 - n) for n in range(1, back + 1)]
    made = [replace(nak, psn=2100 - back - n) for n in range(1, PACKETS + 1)]
    return _parsed(shm, [*job, *first], made)


def _orphans(count: int) -> list[bytes]:
    from support.transport import MIDDLE, Packet

    made = Packet(MIDDLE, 0, bytes(256))
    return [replace(made, psn=2 + 3 * n, dest_qp=0x1000 + n % 7).frame() for n in range(count)]


def standing(shm: Path, count: int) -> float:
    """Of a packet of the job, while so many of strangers wait for their message."""
    from support.extraction import SIMPLE, Send, bench, packets_of

    job = [Send(bytes(300), SIMPLE) for _ in range(PACKETS // 2)]
    frames = [p.frame for p in packets_of(job, immediate=False)]
    with bench(shm, held=2048) as run:
        run.feed(_orphans(count))
        run.extractor.extract(1 << 20)
        assert run.staging.orphan_count == count
        run.feed(frames)
        return steps(lambda: run.extractor.extract(1 << 20)) / len(frames)


def crowding(shm: Path, count: int) -> float:
    """Of one more packet that waits where all of so many places are taken."""
    from support.extraction import bench

    made = _orphans(count + PACKETS)
    with bench(shm, held=count) as run:
        run.feed(made[:count])
        run.extractor.extract(1 << 20)
        run.feed(made[count:])
        return steps(lambda: run.extractor.extract(1 << 20)) / PACKETS


def claims(shm: Path, count: int) -> float:
    """Of a First that claims room, where so many others have claimed all there is."""
    from support.extraction import bench
    from support.transport import FIRST, Packet

    made = [
        Packet(FIRST, 0, bytes(256), va=1, rkey=9, length=4000, dest_qp=0x1000 + n).frame()
        for n in range(count + PACKETS)
    ]
    with bench(shm, data_bytes=4096 * count, records=4096, live=True) as run:
        run.feed(made[:count])
        run.extractor.extract(1 << 20)
        run.feed(made[count:])
        return steps(lambda: run.extractor.extract(1 << 20)) / PACKETS


def main() -> None:
    measure, sizes = {
        "old_psns": (old_psns, (10, 100, 1000)),
        "refusals": (refusals, (10, 100, 1000)),
        "standing": (standing, (10, 100, 1000)),
        "crowding": (crowding, (10, 100, 1000)),
        "claims": (claims, (10, 100, 1000)),
    }[sys.argv[1]]
    found = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as shm:
            found[size] = round(measure(Path(shm), size), 1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
