"""Stage: marks the slots of one ring. The work is one C call per span."""

from __future__ import annotations

from flowcheck.config import JobConfig
from flowcheck.messages import Message, SpanReady
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.zmq_sockets import StageSockets

SPAN_SLOTS = 4096
"""Slots per turn: a few hundred microseconds, so that messages are never kept waiting."""


class ParseService:
    """The only writer of `parsed`, the marks and the flow table of its ring."""

    def __init__(self, run: RunDir, config: JobConfig, number: int) -> None:
        self.name = f"parse-{number}"
        self._run, self._config, self._number = run, config, number
        self._parser: Parser | None = None

    def start(self, links: StageSockets) -> None:
        self._links = links
        self._ring = FrameRing.open(self._run.ring(self._number))
        self._ring.map_pages()
        flows = FlowTable.open(self._run.flows(self._number), writable=True)
        self._parser = Parser(self._ring, flows, icrc_every=self._config.parse.icrc_every)

    def work(self) -> int:
        assert self._parser is not None
        done = self._parser.parse(SPAN_SLOTS)
        if done:
            self._links.send("extract", SpanReady(ring=self._number, parsed=self._ring.parsed))
        return done

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: `work` looks at the ring's head itself."""

    def drained(self) -> bool:
        return self._ring.source_end is not None and self._ring.parsed == self._ring.source_end

    def stop(self) -> None:
        if self._parser is not None:
            self._parser.close()
            self._parser.flows.close()
            self._ring.close()
