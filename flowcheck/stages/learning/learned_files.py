"""What a chain learned of the job: a folder of the run directory, and what lies in it."""

from __future__ import annotations

from pathlib import Path


class LearnedFiles:
    """Paths below `root`/learned."""

    root: Path

    @property
    def learned_folder(self) -> Path:
        return self.root / "learned"

    @property
    def learned_job(self) -> Path:
        """JSON of wire.job.Job; appears whole, after the weights and the shard."""
        return self.learned_folder / "job.json"

    @property
    def weights(self) -> Path:
        """Initial parameters off the wire, bytes in index order."""
        return self.learned_folder / "weights.bin"

    @property
    def beside_weights(self) -> Path:
        """Frozen parameters and buffers that were broadcast with them, back to back in the order
        of the stated model ([model] everything), bytes in index order."""
        return self.learned_folder / "beside.bin"

    @property
    def successor(self) -> Path:
        """A later incarnation of the job: a folder like `learned_folder`, which appears whole,
        after the first one's last step; it goes into `history` when that one is followed."""
        return self.learned_folder / "next"

    @property
    def verdict(self) -> Path:
        """What the updater makes of the successor; appears whole."""
        return self.successor / "verdict.json"

    @property
    def incarnation(self) -> Path:
        """Which incarnation of the job is followed, and from where on."""
        return self.learned_folder / "incarnation.json"

    @property
    def assumed(self) -> Path:
        """What steps were taken on without evidence since the job was learned: a list of
        sentences."""
        return self.learned_folder / "assumed.json"

    @property
    def scale(self) -> Path:
        """Which changes of the stated loss scale were seen in the gradients."""
        return self.learned_folder / "scale.json"

    @property
    def claimed(self) -> Path:
        """Indices of the job's flows, where several jobs pass the same ports."""
        return self.learned_folder / "claimed.json"

    @property
    def unfound(self) -> Path:
        """Is there once everything was read and no job was learned."""
        return self.learned_folder / "none"

    @property
    def base(self) -> Path:
        """The state a job began with that the replica did not hold, as it is given by an operator;
        appears whole, and is gone once it was taken."""
        return self.learned_folder / "base.safetensors"

    @property
    def anchor(self) -> Path:
        """The trainer's own state of a step of a replica that is followed; likewise."""
        return self.learned_folder / "anchor.safetensors"

    def history(self, number: int) -> Path:
        """What was learned of incarnation `number`, from 1, which is over."""
        return self.learned_folder / str(number)
