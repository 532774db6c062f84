"""Records of anchors.jsonl: trainer checkpoints that replaced the state of the replica. Needs
neither torch nor safetensors, as the supervisor reads them too."""

from __future__ import annotations

from typing import Any

import msgspec

from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.finding import Finding
from flowcheck.stages.run_directory.bounded_log_files import complete_lines
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class AnchorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of anchors.jsonl."""

    step: Step
    file: str
    request: str
    """The request's identifier: several may name the same step."""
    at: int
    """The replica's step when the request was answered."""
    refused: Finding | None = None


def parse_anchor_record(line: bytes) -> AnchorRecord:
    """The record of a line; an earlier version wrote `refused` as a sentence."""
    try:
        return msgspec.json.decode(line, type=AnchorRecord)
    except msgspec.ValidationError:
        told = msgspec.json.decode(line, type=dict[str, Any])
        refused = msgspec.convert(told.pop("refused", ""), str)
        record = msgspec.convert(told, AnchorRecord)
        found = earlier_finding(refused) if refused else None
        return msgspec.structs.replace(record, refused=found)


def read_anchor_records(run: RunDir) -> list[AnchorRecord]:
    """All records of a run, oldest first, without a line that a kill left incomplete."""
    lines = complete_lines(run.anchors)
    return [parse_anchor_record(line) for line in lines]


def anchor_record_of(run: RunDir, request: str) -> AnchorRecord | None:
    """The record of a request; None: there is none yet."""
    return next((line for line in read_anchor_records(run) if line.request == request), None)
