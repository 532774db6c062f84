"""`flowcheck analyze`: what is in a capture file, without a job file, also where a mirror broke
every ICRC."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.findings.catalog.capture_file_problems import (
    BYTES_UNCHECKED,
    COPIES_DIFFER,
    NO_PACKETS,
    NO_RIGHT_ICRC,
    SNAPPED,
    UNASSIGNED,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.analysis import analysis_report
from flowcheck.ops.analysis.analysis_report import print_report
from flowcheck.ops.analysis.collective_role_and_sources import role_of, sources_of
from flowcheck.ops.analysis.communicator_summary import communicators_json, summarize_communicators
from flowcheck.ops.analysis.communicator_svg import communicators_svg
from flowcheck.ops.analysis.job_hints import hints_from_job_file, hints_from_options
from flowcheck.ops.analysis.packet_loss_consequences import loss_findings
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
    """Reads `files` as the mirror points of one job and prints what they contain; returns the exit
    code. Notes on the files, such as frames cut by a snap length, go to stderr, or into the JSON.

    model: factory of the model, for trainers that do not broadcast its parameters.
    nccl_log: NCCL's debug log with its rings.
    job: job file; its statements replace these two.
    svg: file for a picture of the communicators.

    Raises CaptureError for a file that cannot be read, ConfigError for an invalid option.
    """
    asked = hints_from_options(model, nccl_log) if job is None else hints_from_job_file(job, files)
    tape = read_capture_files(files)
    if rewritten := has_no_right_icrc(tape):
        tape = read_capture_files(files, icrc_every=0)
    reading = asked.read(tape)
    if reading.job is None:
        nothing = (NO_PACKETS(),)
        told = (*reading.why_not, *non_nccl_reasons(tape.frames)) if tape.total else nothing
        reading = replace(reading, why_not=told)
    if rewritten:
        reading = with_unchecked_bytes(reading)
    rewriting = [NO_RIGHT_ICRC()] if rewritten else []
    notes = [*rewriting, *_notes(tape), *asked.contradictions(reading)]
    for note in () if as_json else notes:
        print(note, file=sys.stderr)
        if note.remedy:
            print(f"  {note.remedy}", file=sys.stderr)
    losses = loss_findings(reading)
    if svg is not None:
        title = f"What {', '.join(path.name for path in files)} holds"
        write_picture(svg, communicators_svg(summarize_communicators(reading), title))
    if as_json:
        json.dump(as_dict(tape.frames, reading, [*notes, *losses]), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_report(tape.frames, reading, losses)
    return 0


def _notes(tape: CaptureContents) -> list[Finding]:
    """What the reader must know about the files themselves."""
    notes: list[Finding] = []
    cut = tape.frames.get("snapped", 0)
    if cut:
        # The other notes would only repeat what follows from it.
        return [SNAPPED(cut)]
    if tape.conflicts:
        notes.append(COPIES_DIFFER(tape.conflicts))
    if tape.dropped_packets:
        notes.append(UNASSIGNED(tape.dropped_packets))
    return notes


def as_dict(
    frames: Mapping[str, int], reading: Reading, notes: Sequence[Finding] = ()
) -> dict[str, Any]:
    """The result for JSON; findings are {"code", "arguments", "until_audit", "sentence"}."""
    weights = reading.weights
    told: dict[str, Any] = {
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
    made: dict[str, Any] = msgspec.to_builtins(told)
    return made


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
        "carried_by": list(sources_of(collective)),
        "assumed": list(collective.assumed),
        "conflicting_bytes": collective.conflicts,
        "meaning": collective.meaning,
        "role": role_of(collective),
        "algorithm": None if collective.ring is None else str(collective.algorithm),
        "tree": collective.algorithm is Algorithm.TREE,  # of before algorithms had names
    }


CHECKED = ("write", "orphan", "stale", "doubtful", "ack", "nak", "send", "read", "cnp")
"""Verdicts of frames whose checksum was right."""
REWRITTEN_FRAMES = 16
"""Frames with a wrong ICRC, and none with a right one, from which the mirror is assumed to rewrite
frames. A choice: fewer could all be damaged by chance."""


def has_no_right_icrc(tape: CaptureContents) -> bool:
    """Whether no RoCE frame has a right ICRC: then a mirror rewrites headers, or a program wrote
    the capture without checksums."""
    right = sum(tape.frames.get(verdict, 0) for verdict in CHECKED)
    return not right and tape.frames.get("icrc_bad", 0) >= REWRITTEN_FRAMES


def with_unchecked_bytes(reading: Reading) -> Reading:
    """The reading with the added assumption that its bytes are right, which no checksum
    confirms."""
    unchecked = BYTES_UNCHECKED()
    collectives = tuple(replace(c, assumed=(*c.assumed, unchecked)) for c in reading.collectives)
    weights = reading.weights
    if weights is not None:
        weights = replace(weights, assumed=(*weights.assumed, unchecked))
    return replace(reading, collectives=collectives, weights=weights)
