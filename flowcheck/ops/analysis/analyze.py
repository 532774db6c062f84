"""`flowcheck analyze`: what is in a capture, without any job file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.ops.analysis import parts, unchecked
from flowcheck.ops.analysis.asked import by_job, by_options
from flowcheck.ops.analysis.communicators import communicators_of
from flowcheck.ops.analysis.diagram import svg_of
from flowcheck.ops.analysis.report import print_report
from flowcheck.ops.picture_file import write_picture
from flowcheck.plane.tape import Tape, read_tape
from flowcheck.wire.foreign import foreign
from flowcheck.wire.learn import Collective, FlowReading, Reading


def run(
    files: Sequence[Path],
    *,
    model: str | None = None,
    nccl_log: Path | None = None,
    job: Path | None = None,
    svg: Path | None = None,
    as_json: bool = False,
) -> int:
    """Read `files` as mirror points of one job and print what they hold; the exit code. What
    does not belong to the result, like a file cut by a snap length, goes to stderr as well. model:
    a factory, for trainers that do not tell theirs; nccl_log: what NCCL said of its rings; job: a
    job file, of which all that it states is taken in their place; svg: a picture of the
    communicators is written there."""
    asked = by_options(model, nccl_log) if job is None else by_job(job, files)
    tape = read_tape(files)
    if rewritten := unchecked.is_rewritten(tape):
        tape = read_tape(files, icrc_every=0)
    reading = asked.read(tape)
    if reading.job is None:
        reading = replace(reading, why_not=(*reading.why_not, *foreign(tape.frames)))
    if rewritten:
        reading = unchecked.told(reading)
    rewriting = [unchecked.REWRITTEN] if rewritten else []
    notes = [*rewriting, *_notes(tape), *asked.unlike(reading)]
    for note in notes:
        print(note, file=sys.stderr)
    if svg is not None:
        title = f"What {', '.join(path.name for path in files)} holds"
        write_picture(svg, svg_of(communicators_of(reading), title))
    if as_json:
        json.dump(as_dict(tape.frames, reading, notes), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_report(tape.frames, reading)
    return 0


def _notes(tape: Tape) -> list[str]:
    """What the reader must know about the files themselves."""
    notes: list[str] = []
    cut = tape.frames.get("snapped", 0)
    if cut:
        # What follows from it needs no word of its own.
        return [f"{cut} frames were cut by the capture's snap length: their payload is lost"]
    if tape.conflicts:
        notes.append(f"{tape.conflicts} bytes were seen twice with different values")
    if tape.dropped_packets:
        notes.append(f"{tape.dropped_packets} packets could not be given to any message")
    return notes


def as_dict(
    frames: Mapping[str, int], reading: Reading, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The reading for programs."""
    weights = reading.weights
    return {
        "frames": {"total": sum(frames.values()), **frames},
        "flows": [_flow(flow) for flow in reading.flows],
        "collectives": [_collective(c) for c in reading.collectives],
        "communicators": msgspec.to_builtins(communicators_of(reading)),
        "weights": weights
        and {
            "shapes": [list(shape) for shape in weights.shapes],
            "bytes": weights.bytes,
            "sha256": weights.sha256,
            "missing": [list(part) for part in weights.missing],
            "assumed": list(weights.assumed),
        },
        "jobs": parts.as_dicts(reading),
        "formats": list(reading.formats),
        "notes": [*notes, *reading.why_not],
    }


def _flow(flow: FlowReading) -> dict[str, Any]:
    seen = flow.seen
    return {
        "src": seen.key.source,
        "dst": seen.key.destination,
        "dest_qp": seen.key.dest_qp,
        "incarnation": seen.key.incarnation,
        "peer_dest_qp": flow.peer.dest_qp if flow.peer else None,
        "role": flow.role,
        "protocol": None if flow.protocol is None else str(flow.protocol),
        "messages": flow.messages,
        "bytes": flow.bytes,
        "psn_missing": seen.psn_missing,
        "psn_duplicate": seen.psn_duplicate,
        "icrc_bad": seen.icrc_bad,
        "numbered_by": list(flow.numbered_by),
        "problems": list(flow.problems),
    }


def _collective(collective: Collective) -> dict[str, Any]:
    return {
        "index": collective.index,
        "kind": collective.kind,
        "communicator": collective.communicator,
        "protocol": str(collective.protocol),
        "channels": collective.channels,
        "bytes": collective.bytes,
        "coverage": collective.coverage,
        "missing": [list(part) for part in collective.missing],
        "sha256": collective.sha256,
        "sources": list(collective.sources),
        "assumed": list(collective.assumed),
        "conflicting_bytes": collective.conflicts,
        "meaning": collective.meaning,
        "tree": collective.tree,
    }
