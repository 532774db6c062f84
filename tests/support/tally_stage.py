"""A stage that FlowCheck does not have: one for each ring, counting what is parsed there. All that
it takes to have it in a chain is its row; nothing of the package knows it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowcheck.stages import stage_table
from flowcheck.stages.stage_table import InstancePer, Position, StageSpec

if TYPE_CHECKING:
    from flowcheck.config import JobConfig
    from flowcheck.messages import Message
    from flowcheck.plane.shared_memory.frame_ring import FrameRing
    from flowcheck.stages.run_directory.run_dir import RunDir
    from flowcheck.stages.zmq_sockets import StageSockets

ROW = StageSpec(
    name="tally",
    factory="support.tally_stage:TallyService",
    per=InstancePer.RING,
    takes_frames=True,
    position=Position.PARSED,
    shared=True,
)
REPOSITORY = Path(__file__).resolve().parents[2]


def with_row(row: StageSpec = ROW) -> tuple[StageSpec, ...]:
    """The table with one more row, where stages that take frames are started."""
    *others, capture = stage_table.STAGES
    return (*others, row, capture)


class TallyService:
    """What it counted is in a file of the run directory once it was asked to leave."""

    def __init__(self, run: RunDir, config: JobConfig, number: int) -> None:
        self.name = ROW.instance(number)
        self._run, self._number, self._seen = run, number, 0
        self._ring: FrameRing | None = None

    def start(self, links: StageSockets) -> None:
        from flowcheck.findings.catalog.earlier_files import earlier_finding
        from flowcheck.messages import Note
        from flowcheck.plane.shared_memory.frame_ring import FrameRing

        self._ring = FrameRing.open(self._run.ring(self._number))
        links.report(Note(stage=self.name, finding=earlier_finding("frames are tallied")))

    def work(self) -> int:
        assert self._ring is not None
        before, self._seen = self._seen, self._ring.parsed
        return self._seen - before

    def on_message(self, message: Message) -> None:
        """Nobody nudges it."""

    def drained(self) -> bool:
        return self._ring is not None and self._seen == self._ring.source_end

    def stop(self) -> None:
        if self._ring is not None:
            (self._run.root / f"{self.name}.txt").write_text(str(self._ring.parsed))
            self._ring.close()


@contextmanager
def known_to_all_processes(environment: dict[str, str]) -> Iterator[None]:
    """Every Python process that is started with the environment meanwhile has the row, as if it
    stood in the table: site.py imports sitecustomize from its path. Every user may read the folder,
    for a chain that root starts runs as another."""
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-test-"))
    folder.chmod(0o755)
    lines = "from support import tally_stage\ntally_stage.register()\n"
    (folder / "sitecustomize.py").write_text(lines)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(folder), str(REPOSITORY), str(REPOSITORY / "tests"), *([path] if path else [])]
    )
    try:
        yield
    finally:
        shutil.rmtree(folder)
        environment.pop("PYTHONPATH")
        if path is not None:
            environment["PYTHONPATH"] = path


def register() -> None:
    stage_table.STAGES = with_row()
