"""`flowcheck analyze`: what is in a capture file, without a job file, also where a mirror broke
every ICRC."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowcheck.ops.analysis import analysis_report
from flowcheck.ops.analysis.analysis_report import print_report
from flowcheck.ops.analysis.communicator_summary import (
    communicators_json,
    summarize_communicators,
)
from flowcheck.ops.analysis.communicator_svg import communicators_svg
from flowcheck.ops.analysis.job_hints import hints_from_job_file, hints_from_options
from flowcheck.ops.svg_drawing import write_picture
from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.learn import Collective, FlowReading, Reading
from flowcheck.wire.traffic.non_nccl_traffic import non_nccl_reasons


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
    asked = hints_from_options(model, nccl_log) if job is None else hints_from_job_file(job, files)
    tape = read_capture_files(files)
    if rewritten := has_no_right_icrc(tape):
        tape = read_capture_files(files, icrc_every=0)
    reading = asked.read(tape)
    if reading.job is None:
        reading = replace(reading, why_not=(*reading.why_not, *non_nccl_reasons(tape.frames)))
    if rewritten:
        reading = marked_unchecked(reading)
    rewriting = [REWRITTEN] if rewritten else []
    notes = [*rewriting, *_notes(tape), *asked.unlike(reading)]
    for note in notes:
        print(note, file=sys.stderr)
    if svg is not None:
        title = f"What {', '.join(path.name for path in files)} holds"
        write_picture(svg, communicators_svg(summarize_communicators(reading), title))
    if as_json:
        json.dump(as_dict(tape.frames, reading, notes), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_report(tape.frames, reading)
    return 0


def _notes(tape: CaptureContents) -> list[str]:
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
        "communicators": communicators_json(reading),
        "weights": weights
        and {
            "shapes": [list(shape) for shape in weights.shapes],
            "bytes": weights.bytes,
            "sha256": weights.sha256,
            "missing": [list(part) for part in weights.missing],
            "assumed": list(weights.assumed),
        },
        "jobs": analysis_report.as_dicts(reading),
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
        "algorithm": str(collective.algorithm),
        "tree": collective.algorithm is Algorithm.TREE,  # of before algorithms had names
    }


CHECKED = ("write", "orphan", "stale", "doubtful", "ack", "nak", "send", "read", "cnp")
"""Verdicts of frames whose check sum was right."""
REWRITTEN_FRAMES = 16
"""With fewer, all of them may be damaged."""
REWRITTEN = (
    "not one frame has a right check sum (ICRC): headers were written anew on the way, or never "
    "had one; the frames were read unchecked"
)
UNCHECKED = "its bytes: no frame has a right check sum"


def has_no_right_icrc(tape: CaptureContents) -> bool:
    """Not one check sum of RoCE is right: not frames that were damaged, but a mirror that writes
    headers anew, or a program that wrote the capture without them."""
    right = sum(tape.frames.get(verdict, 0) for verdict in CHECKED)
    return not right and tape.frames.get("icrc_bad", 0) >= REWRITTEN_FRAMES


def marked_unchecked(reading: Reading) -> Reading:
    """The same, and that nothing vouches for its bytes."""
    collectives = tuple(replace(c, assumed=(*c.assumed, UNCHECKED)) for c in reading.collectives)
    weights = reading.weights
    if weights is not None:
        weights = replace(weights, assumed=(*weights.assumed, UNCHECKED))
    return replace(reading, collectives=collectives, weights=weights)
