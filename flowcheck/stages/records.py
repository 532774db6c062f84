"""What a run directory keeps of how a chain went: a file for each, which outlive the chain."""

from __future__ import annotations

from pathlib import Path


class RecordFiles:
    """Paths below `root`, and below `root`/previous of the run before."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved job configuration, JSON."""
        return self.root / "config.json"

    @property
    def steps(self) -> Path:
        """One JSON line per step taken."""
        return self.root / "steps.jsonl"

    @property
    def trace(self) -> Path:
        """Digests of every tensor at every step (replica/kept/trace.py)."""
        return self.root / "trace"

    @property
    def audits(self) -> Path:
        """One JSON line per audit."""
        return self.root / "audits.jsonl"

    @property
    def anchors(self) -> Path:
        """One JSON line per file of the trainer's that the replica was to go on from."""
        return self.root / "anchors.jsonl"

    @property
    def events(self) -> Path:
        """One JSON line per event (chain/events.py)."""
        return self.root / "events.jsonl"

    @property
    def beat(self) -> Path:
        """That the supervisor is alive (chain/beat.py)."""
        return self.root / "beat.json"

    @property
    def persisted(self) -> Path:
        """What is durable at the target, and what is under way (vault/persist/told.py)."""
        return self.root / "persist.json"

    @property
    def served(self) -> Path:
        """Where steps are served, while they are: {"url"}."""
        return self.root / "serve.json"

    @property
    def unlearned(self) -> Path:
        """Why no job is learned yet: a list of sentences."""
        return self.root / "unlearned.json"

    @property
    def ended(self) -> Path:
        """Why the chain ended, and what it had come to (ops/watch/ended.py)."""
        return self.root / "ended.json"

    @property
    def asked(self) -> Path:
        """Who asked it to end, in words; there from the question to the end."""
        return self.root / "asked"

    @property
    def previous(self) -> Path:
        """Logs, events and steps of the run before: they tell the reason of its end."""
        return self.root / "previous"

    def log(self, stage: str) -> Path:
        return self.root / f"{stage}.log"

    def records(self) -> list[Path]:
        """What tells how it went, but for the learned job and the trace."""
        own = (self.config, self.steps, self.events, self.unlearned, self.persisted)
        held = (self.audits, self.anchors, self.beat, self.ended)
        patterns = ("*.log", "steps-*.jsonl")
        return [*own, *held, *(path for pattern in patterns for path in self.root.glob(pattern))]
