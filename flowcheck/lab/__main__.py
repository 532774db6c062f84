"""Writes a capture of a synthetic data-parallel job: python -m flowcheck.lab OUT.pcap [--steps N]
..."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticTraffic,
    make_traffic,
    write_pcap,
)


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """`64x32,64` as ((64, 32), (64,))."""
    return tuple(tuple(int(size) for size in shape.split("x")) for shape in text.split(","))


def _truth(traffic: SyntheticTraffic) -> str:
    """sha256 of the initial weights and of every step's mean gradient, one line each."""
    named = [("weights", traffic.weights)]
    named += [(f"gradient {n}", data) for n, data in enumerate(traffic.gradients, 1)]
    return "".join(f"{hashlib.sha256(data).hexdigest()} {name}\n" for name, data in named)


def main() -> None:
    """Writes the frames that a mirror of one rank's port would copy."""
    parser = argparse.ArgumentParser(prog="python -m flowcheck.lab", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.pcap")
    parser.add_argument("--shapes", type=_shapes, default=SyntheticJob.shapes, metavar="64x32,64")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--nccl", default="2.19", choices=("2.19", "2.20", "2.23", "2.26", "2.29"))
    parser.add_argument("--mtu", type=int, default=1024, choices=(256, 512, 1024, 2048, 4096))
    parser.add_argument("--port-of", type=int, default=0, metavar="RANK", help="mirrored rank")
    parser.add_argument("--direction", default="both", choices=("both", "rx", "tx"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truth", type=Path, metavar="FILE", help="sha256 of what really happened")
    options = parser.parse_args()
    job = SyntheticJob(
        shapes=options.shapes,
        ranks=options.ranks,
        channels=options.channels,
        steps=options.steps,
        version=options.nccl,
        pmtu_bytes=options.mtu,
        seed=options.seed,
    )
    traffic = make_traffic(job)
    count = write_pcap(options.out, traffic.frames_at_port(options.port_of, options.direction))
    if options.truth is not None:
        options.truth.write_text(_truth(traffic))
    print(f"{options.out}: {count} frames, {job.ranks} ranks, {job.steps} steps")


if __name__ == "__main__":
    main()
