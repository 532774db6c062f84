"""A chain's state as Prometheus reads it. Every name, with its help and labels, is in METRICS.

Labels are names that the job file or this program gives, of which there are few: jobs, stages,
rings, counters. A step or an address is never one. The job's is called training_job, as Prometheus
keeps `job` for what it scrapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from flowcheck.ops.watch.samples import samples
from flowcheck.ops.watch.state import State

if TYPE_CHECKING:
    from prometheus_client.core import Metric

GAUGE, COUNTER = "gauge", "counter"
JOB = "training_job"


class Told(NamedTuple):
    """One metric: a counter's name ends in _total where it is told."""

    kind: str
    help: str
    labels: tuple[str, ...]


METRICS: dict[str, Told] = {
    "flowcheck_health": Told(
        GAUGE, "1 at the word that holds: exact, behind, tainted or stale.", ("word",)
    ),
    "flowcheck_job_health": Told(GAUGE, "The same of each job.", (JOB, "word")),
    "flowcheck_over": Told(
        GAUGE,
        "1 as soon as the chain ends because somebody asked for that.",
        (),
    ),
    "flowcheck_started_time_seconds": Told(GAUGE, "When the chain began, since 1970.", ()),
    "flowcheck_beat_age_seconds": Told(GAUGE, "Since the supervisor's heart last beat.", ()),
    "flowcheck_problems": Told(GAUGE, "Parts of the state that cannot be read just now.", ()),
    "flowcheck_events_total": Told(COUNTER, "Events since the chain began, by kind.", ("kind",)),
    "flowcheck_unwritten_lines_total": Told(
        COUNTER, "Lines of steps and events that were not written: the disk was full.", ()
    ),
    "flowcheck_packets_came_late_total": Told(
        COUNTER, "Packets that were missing at one look and there at a later one.", ()
    ),
    "flowcheck_stage_up": Told(GAUGE, "Whether a stage's process lives.", (JOB, "stage")),
    "flowcheck_stage_restarts_total": Told(
        COUNTER, "Times a stage died and was started again.", (JOB, "stage")
    ),
    "flowcheck_ring_slots": Told(GAUGE, "Frames a ring holds.", ("ring",)),
    "flowcheck_ring_filled_slots": Told(
        GAUGE, "Frames captured that the slowest reader has not given back.", ("ring",)
    ),
    "flowcheck_captured_frames_total": Told(COUNTER, "Frames put into a ring.", ("ring",)),
    "flowcheck_captured_bytes_total": Told(COUNTER, "Bytes off the wire.", ("ring",)),
    "flowcheck_frame_age_seconds": Told(GAUGE, "Since a ring's last frame came.", ("ring",)),
    "flowcheck_link_up": Told(
        GAUGE,
        "Whether the interface of a ring has a link; 1 also where nothing can tell.",
        ("ring", "source"),
    ),
    "flowcheck_parsed_frames_total": Told(COUNTER, "Frames the parser has marked.", ("ring",)),
    "flowcheck_extracted_frames_total": Told(
        COUNTER, "Frames the first job's extractor has taken.", ("ring",)
    ),
    "flowcheck_lost_frames_total": Told(
        COUNTER, "Frames that reached this machine and no slot, by counter.", ("ring", "counter")
    ),
    "flowcheck_missing_packets": Told(
        GAUGE, "Packets that sequence numbers show and no mirror brought, so far.", ("ring",)
    ),
    "flowcheck_frames_total": Told(
        COUNTER, "Frames by what they turned out to be.", ("ring", "verdict")
    ),
    "flowcheck_parse_total": Told(
        COUNTER, "The parser's counters beside the verdicts.", ("ring", "counter")
    ),
    "flowcheck_extract_total": Told(
        COUNTER, "The first job's extractor's counters.", ("ring", "counter")
    ),
    "flowcheck_learned": Told(GAUGE, "Whether a job is followed.", (JOB,)),
    "flowcheck_life": Told(GAUGE, "Life of the job: 2 once it came back.", (JOB,)),
    "flowcheck_step": Told(GAUGE, "The last step the replica took.", (JOB,)),
    "flowcheck_step_time_seconds": Told(GAUGE, "When it was taken, since 1970.", (JOB,)),
    "flowcheck_step_age_seconds": Told(GAUGE, "Since it was taken.", (JOB,)),
    "flowcheck_silence_seconds": Told(
        GAUGE, "Since anything of the job came; none once the sources have ended.", (JOB,)
    ),
    "flowcheck_silence_limit_seconds": Told(
        GAUGE, "What of that its steps explain: ten median ones, 30 s at least.", (JOB,)
    ),
    "flowcheck_arrived_step": Told(GAUGE, "The last step that is whole.", (JOB,)),
    "flowcheck_lag_steps": Told(GAUGE, "Whole steps the replica has not taken yet.", (JOB,)),
    "flowcheck_lag_seconds": Told(
        GAUGE, "Since the first of those was whole; of none, from whole to taken.", (JOB,)
    ),
    "flowcheck_update_seconds": Told(GAUGE, "What taking the last step took.", (JOB,)),
    "flowcheck_under_way_ratio": Told(
        GAUGE, "Part of the next step's bytes that is placed.", (JOB,)
    ),
    "flowcheck_lost_steps_total": Told(
        COUNTER, "Steps that could not be rebuilt, since the chain began.", (JOB,)
    ),
    "flowcheck_waits_at_lost_step": Told(
        GAUGE, "Whether the replica stays before a step that was lost.", (JOB,)
    ),
    "flowcheck_awaits_base": Told(
        GAUGE, "Whether the state the job began with is still to be given.", (JOB,)
    ),
    "flowcheck_tainted_parameters": Told(
        GAUGE, "Parameters that are not of the replica's step.", (JOB,)
    ),
    "flowcheck_assumptions": Told(
        GAUGE, "What the replica rests on that nothing seen could have contradicted.", (JOB,)
    ),
    "flowcheck_audited_step": Told(GAUGE, "Step of the last audit.", (JOB,)),
    "flowcheck_audit_passed": Told(GAUGE, "Whether it passed.", (JOB,)),
    "flowcheck_durable_step": Told(GAUGE, "Step of the newest durable checkpoint.", (JOB,)),
    "flowcheck_durable_time_seconds": Told(GAUGE, "When that was made, since 1970.", (JOB,)),
    "flowcheck_durable_lag_steps": Told(
        GAUGE, "Steps the replica took since that one; all, without one.", (JOB,)
    ),
    "flowcheck_saves_total": Told(COUNTER, "Checkpoints saved since the chain began.", (JOB,)),
    "flowcheck_save_attempts_failed": Told(
        GAUGE, "Attempts to save that failed since one did not.", (JOB,)
    ),
}


def exposition(state: State, accept: str) -> tuple[bytes, str]:
    """(text, its content type), in the format that a scraper accepts."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    class Once:
        def collect(self) -> Iterable[Metric]:
            return families(state)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    encoder, kind = choose_encoder(accept)
    text: bytes = encoder(registry)
    return text, kind


def families(state: State) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for name, values, value in samples(state):
        told = METRICS[name]
        if name not in made:
            family = CounterMetricFamily if told.kind == COUNTER else GaugeMetricFamily
            made[name] = family(name, told.help, labels=told.labels)
        made[name].add_metric(values, value)
    yield from made.values()
