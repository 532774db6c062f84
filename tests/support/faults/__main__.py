"""`scripts/faults [COUNT] [--seed N]`: schedules of faults from a seed on, and how each ended."""

from __future__ import annotations

import argparse
import os
import select
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from support.faults import chain, processes
from support.faults.drawn import drawn
from support.faults.judge import EXACT, FAILED, VERDICTS, Verdict, bare, judged
from support.faults.plane import PlaneSchedule, drawn_plane, outcome_of, plane_table
from support.faults.schedule import Schedule, encoded, table
from support.faults.shrink import shrunk

Either = Schedule | PlaneSchedule
SCHEDULE_LIMIT_S = 400.0
"""Of one schedule with all its lives, and once more with nothing done to it."""


def of_plane(schedule: PlaneSchedule) -> Verdict:
    """Of a schedule of the inner objects alone, in shared memory."""
    with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as folder:
        return outcome_of(schedule, Path(folder))


def outcome(schedule: Schedule, folder: Path, *, begun: bool = False) -> Verdict:
    """Runs and judges it. This process must have nothing to lose."""
    began_s = time.monotonic()
    (folder / "first").mkdir()
    ran = chain.ran(schedule, folder / "first", begun=begun)
    found = judged(ran)
    if schedule.harmless and found.verdict not in (EXACT, FAILED):
        (folder / "bare").mkdir()
        if judged(chain.ran(bare(schedule), folder / "bare")).verdict == EXACT:
            why = f"nothing in it may cost a step, and it did: {found.why}"
            found = msgspec.structs.replace(found, verdict=FAILED, why=why)
    done = len(list((folder / "first/done").iterdir()))
    return msgspec.structs.replace(
        found, seconds=round(time.monotonic() - began_s, 2), faults_done=done
    )


@dataclass
class Worker:
    """A process that runs one schedule."""

    schedule: Either
    folder: Path
    pid: int
    pipe: int
    until_s: float
    said: bytes = b""


def start(schedule: Either, folder: Path, *, begun: bool) -> Worker:
    own = folder / f"{schedule.seed}"
    own.mkdir()
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(read)
            found = (
                of_plane(schedule)
                if isinstance(schedule, PlaneSchedule)
                else outcome(schedule, own, begun=begun)
            )
            os.write(write, msgspec.json.encode(found))
            code = 0
        except BaseException:
            traceback.print_exc()
            processes.end_children()
        finally:
            os._exit(code)
    os.close(write)
    return Worker(schedule, own, pid, read, time.monotonic() + SCHEDULE_LIMIT_S)


def finished(workers: list[Worker]) -> Iterator[tuple[Worker, Verdict]]:
    """Those that have ended, after a while of waiting."""
    ready = select.select([worker.pipe for worker in workers], [], [], 1.0)[0]
    for worker in list(workers):
        over = time.monotonic() > worker.until_s
        if worker.pipe in ready:
            part = os.read(worker.pipe, 1 << 16)
            worker.said += part
            if part and not over:
                continue
        elif not over:
            continue
        if over:
            os.kill(worker.pid, 9)
        os.close(worker.pipe)
        os.waitpid(worker.pid, 0)
        workers.remove(worker)
        if worker.said and not over:
            yield worker, msgspec.json.decode(worker.said, type=Verdict)
        else:
            why = f"no end within {SCHEDULE_LIMIT_S:.0f} s" if over else "the judge itself failed"
            yield worker, Verdict(seed=worker.schedule.seed, verdict=FAILED, why=why)


def run(schedules: Sequence[Either], told: argparse.Namespace) -> Counter[str]:
    """All of them, so many at once."""
    counts: Counter[str] = Counter()
    waiting, workers = list(reversed(schedules)), list[Worker]()
    with tempfile.TemporaryDirectory(prefix="flowcheck-faults-", ignore_cleanup_errors=True) as at:
        folder = Path(told.keep or at)
        folder.mkdir(exist_ok=True)
        while waiting or workers:
            while waiting and len(workers) < told.jobs:
                workers.append(start(waiting.pop(), folder, begun=told.begun))
            for worker, found in finished(workers):
                counts[found.verdict] += 1
                say(worker.schedule, found, told)
                if not told.keep:
                    chain.cleared(worker.folder)
    return counts


def say(schedule: Either, found: Verdict, told: argparse.Namespace) -> None:
    if told.json:
        print(msgspec.json.encode(found).decode(), flush=True)
        return
    steps = f"{found.taken}/{found.steps}"
    why = found.why if len(found.why) < 160 or found.verdict == FAILED else found.why[:157] + "..."
    print(f"seed {found.seed:>8} {found.verdict:10} {steps:>5} {found.seconds:6.1f} s  {why}")
    if found.verdict == FAILED:
        inner = isinstance(schedule, PlaneSchedule)
        print(plane_table(schedule) if isinstance(schedule, PlaneSchedule) else table(schedule))
        print(f"  alone     scripts/faults{' --plane' * inner} --only {schedule.seed}")
    sys.stdout.flush()


def words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/faults",
        description="Runs seeded schedules of faults over the whole chain. Each ends in exact, "
        "named loss or refused; any other end is a failure, and exits with 1.",
    )
    parser.add_argument("count", nargs="?", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="of the first; by default the time")
    parser.add_argument("--only", type=int, nargs="+", help="these seeds alone")
    parser.add_argument("--show", action="store_true", help="print the schedules as JSON, run none")
    parser.add_argument("--schedule", type=Path, help="one from a file, as --show prints it")
    parser.add_argument("--shrink", action="store_true", help="leave out what it fails without")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at once")
    parser.add_argument(
        "--plane", action="store_true", help="ring, parser, extractor and shard alone: quick"
    )
    parser.add_argument("--begun", action="store_true", help="every stage a new interpreter")
    parser.add_argument("--keep", type=Path, help="leave what was written in this folder")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    return parser.parse_args()


def shrink(schedule: Schedule, told: argparse.Namespace) -> int:
    """What is left of one that fails, as a table and as JSON."""
    processes.load()
    told.json = True
    smallest = shrunk(schedule, lambda one: run([one], told)[FAILED] > 0)
    print(table(smallest))
    print(encoded(smallest).decode())
    return 1


def main() -> int:
    told = words()
    first = int(time.time()) if told.seed is None else told.seed
    seeds = told.only or range(first, first + told.count)
    schedules: list[Either] = [drawn_plane(n) if told.plane else drawn(n) for n in seeds]
    if told.schedule is not None:
        kind: type[Either] = PlaneSchedule if told.plane else Schedule
        schedules = [msgspec.json.decode(told.schedule.read_bytes(), type=kind)]
    if told.show:
        for schedule in schedules:
            print(encoded(schedule).decode())
        return 0
    if told.shrink and isinstance(schedules[0], Schedule):
        return shrink(schedules[0], told)
    if len(schedules) > 1 and not told.json and not told.only:
        print(f"{len(schedules)} schedules, seeds {first} to {first + len(schedules) - 1}")
    processes.load()
    counts = run(schedules, told)
    if not told.json:
        print(", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
    return 1 if counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
