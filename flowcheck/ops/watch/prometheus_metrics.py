"""A chain's state as Prometheus metrics: the table of all metrics with help and labels, and the
samples of a state.

Labels are names that the job file or this program gives, of which there are few: jobs, stages,
rings, counters. A step or an address is never a label. The job's label is training_job, as
Prometheus keeps `job` for what it scrapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from flowcheck.ops.watch.state.chain_state import (
    ChainState,
    HealthWord,
    JobState,
    RingState,
    StageState,
)
from flowcheck.replica.model_taint import ModelTaint

if TYPE_CHECKING:
    from prometheus_client.core import Metric

GAUGE, COUNTER = "gauge", "counter"
JOB, MODEL = "training_job", "model"


class MetricInfo(NamedTuple):
    """One metric. A counter's name is shown with _total at its end."""

    kind: str
    help: str
    labels: tuple[str, ...]


METRICS: dict[str, MetricInfo] = {
    "flowcheck_health": MetricInfo(
        GAUGE, "1 at the word that holds: exact, behind, tainted, stale or ended.", ("word",)
    ),
    "flowcheck_job_health": MetricInfo(GAUGE, "The same of each job.", (JOB, "word")),
    "flowcheck_over": MetricInfo(
        GAUGE,
        "1 as soon as the chain ends because somebody asked for that.",
        (),
    ),
    "flowcheck_started_time_seconds": MetricInfo(GAUGE, "When the chain began, since 1970.", ()),
    "flowcheck_beat_age_seconds": MetricInfo(
        GAUGE, "Seconds since the supervisor's last heartbeat.", ()
    ),
    "flowcheck_problems": MetricInfo(GAUGE, "Parts of the state that cannot be read just now.", ()),
    "flowcheck_events_total": MetricInfo(
        COUNTER, "Events since the chain began, by kind.", ("kind",)
    ),
    "flowcheck_unwritten_lines_total": MetricInfo(
        COUNTER, "Lines of steps and events that were not written: the disk was full.", ()
    ),
    "flowcheck_packets_came_late_total": MetricInfo(
        COUNTER, "Packets that were missing at one look and there at a later one.", ()
    ),
    "flowcheck_stage_up": MetricInfo(GAUGE, "Whether a stage's process lives.", (JOB, "stage")),
    "flowcheck_stage_restarts_total": MetricInfo(
        COUNTER, "Times a stage died and was started again.", (JOB, "stage")
    ),
    "flowcheck_ring_slots": MetricInfo(GAUGE, "Frames a ring holds.", ("ring",)),
    "flowcheck_ring_filled_slots": MetricInfo(
        GAUGE, "Frames captured that the slowest reader has not given back.", ("ring",)
    ),
    "flowcheck_captured_frames_total": MetricInfo(COUNTER, "Frames put into a ring.", ("ring",)),
    "flowcheck_captured_bytes_total": MetricInfo(COUNTER, "Bytes off the wire.", ("ring",)),
    "flowcheck_frame_age_seconds": MetricInfo(GAUGE, "Since a ring's last frame came.", ("ring",)),
    "flowcheck_link_up": MetricInfo(
        GAUGE,
        "Whether the interface of a ring has a link; 1 also where nothing can tell.",
        ("ring", "source"),
    ),
    "flowcheck_parsed_frames_total": MetricInfo(
        COUNTER, "Frames the parser has marked.", ("ring",)
    ),
    "flowcheck_extracted_frames_total": MetricInfo(
        COUNTER, "Frames the first job's extractor has taken.", ("ring",)
    ),
    "flowcheck_lost_frames_total": MetricInfo(
        COUNTER, "Frames that reached this machine and no slot, by counter.", ("ring", "counter")
    ),
    "flowcheck_missing_packets": MetricInfo(
        GAUGE, "Packets that sequence numbers show and no mirror brought, so far.", ("ring",)
    ),
    "flowcheck_frames_total": MetricInfo(
        COUNTER, "Frames by what they turned out to be.", ("ring", "verdict")
    ),
    "flowcheck_parse_total": MetricInfo(
        COUNTER, "The parser's counters beside the verdicts.", ("ring", "counter")
    ),
    "flowcheck_extract_total": MetricInfo(
        COUNTER, "The first job's extractor's counters.", ("ring", "counter")
    ),
    "flowcheck_learned": MetricInfo(GAUGE, "Whether a job is followed.", (JOB,)),
    "flowcheck_life": MetricInfo(GAUGE, "Life of the job: 2 once it came back.", (JOB,)),
    "flowcheck_step": MetricInfo(GAUGE, "The last step the replica applied.", (JOB,)),
    "flowcheck_step_time_seconds": MetricInfo(GAUGE, "When it was taken, since 1970.", (JOB,)),
    "flowcheck_step_age_seconds": MetricInfo(GAUGE, "Since it was taken.", (JOB,)),
    "flowcheck_silence_seconds": MetricInfo(
        GAUGE, "Since anything of the job came; none once the sources have ended.", (JOB,)
    ),
    "flowcheck_silence_limit_seconds": MetricInfo(
        GAUGE, "What of that its steps explain: ten median ones, 30 s at least.", (JOB,)
    ),
    "flowcheck_arrived_step": MetricInfo(GAUGE, "The last step that is whole.", (JOB,)),
    "flowcheck_lag_steps": MetricInfo(
        GAUGE, "Whole steps the replica has not applied yet.", (JOB,)
    ),
    "flowcheck_lag_seconds": MetricInfo(
        GAUGE, "Since the first of those was whole; of none, from whole to taken.", (JOB,)
    ),
    "flowcheck_update_seconds": MetricInfo(
        GAUGE, "Seconds that applying the last step took.", (JOB,)
    ),
    "flowcheck_under_way_ratio": MetricInfo(
        GAUGE, "Part of the next step's bytes that is placed.", (JOB,)
    ),
    "flowcheck_lost_steps_total": MetricInfo(
        COUNTER, "Steps that could not be rebuilt, since the chain began.", (JOB,)
    ),
    "flowcheck_waits_at_lost_step": MetricInfo(
        GAUGE, "Whether the replica stays before a step that was lost.", (JOB,)
    ),
    "flowcheck_awaits_base": MetricInfo(
        GAUGE, "Whether the state the job began with is still to be given.", (JOB,)
    ),
    "flowcheck_tainted_parameters": MetricInfo(
        GAUGE,
        "Whole parameters of sharded training that are of an earlier step, as they did not come.",
        (JOB,),
    ),
    "flowcheck_tainted_elements": MetricInfo(
        GAUGE, "Elements of the parameters that rest on bytes which are not known.", (JOB,)
    ),
    "flowcheck_model_elements": MetricInfo(
        GAUGE, "Elements of a model, of all jobs that have its parts.", (MODEL,)
    ),
    "flowcheck_model_tainted_elements": MetricInfo(
        GAUGE, "Those that rest on bytes which are not known, of all its jobs.", (MODEL,)
    ),
    "flowcheck_model_tainted_since_step": MetricInfo(
        GAUGE, "The first step that lacked such a byte; no sample while none is tainted.", (MODEL,)
    ),
    "flowcheck_model_exact_step": MetricInfo(
        GAUGE, "The newest step kept that is exact in all jobs of a model.", (MODEL,)
    ),
    "flowcheck_healed_elements_total": MetricInfo(
        COUNTER, "Tainted elements that the trainer's values made exact again.", (JOB,)
    ),
    "flowcheck_asked_bytes_total": MetricInfo(
        COUNTER, "Bytes that the trainer's hook sent for that.", (JOB,)
    ),
    "flowcheck_copy_lag_steps": MetricInfo(
        GAUGE, "Steps that a copy is behind the chain it follows.", (JOB,)
    ),
    "flowcheck_copy_lag_seconds": MetricInfo(
        GAUGE, "Seconds for which a later step has been known that the copy has not.", (JOB,)
    ),
    "flowcheck_copy_received_bytes_total": MetricInfo(
        COUNTER, "Bytes that the copy received.", (JOB,)
    ),
    "flowcheck_copy_source_answers": MetricInfo(
        GAUGE, "1: the chain that is followed answered the last request.", (JOB,)
    ),
    "flowcheck_copies": MetricInfo(GAUGE, "Copies that followed this chain.", (JOB,)),
    "flowcheck_copies_lag_steps": MetricInfo(
        GAUGE, "Steps that the slowest of them is behind.", (JOB,)
    ),
    "flowcheck_kept_steps_bytes": MetricInfo(
        GAUGE, "Bytes of `[gradient_log] folder` that kept steps take.", (JOB,)
    ),
    "flowcheck_kept_steps_first": MetricInfo(GAUGE, "The oldest step that is kept there.", (JOB,)),
    "flowcheck_kept_steps_last": MetricInfo(GAUGE, "The newest step that is kept there.", (JOB,)),
    "flowcheck_steps_not_kept_total": MetricInfo(
        COUNTER, "Steps and healings that could not be kept there.", (JOB,)
    ),
    "flowcheck_assumptions": MetricInfo(
        GAUGE, "What the replica rests on that nothing seen could have contradicted.", (JOB,)
    ),
    "flowcheck_audited_step": MetricInfo(
        GAUGE, "Step of the last audit; if one failed since the last base, its step.", (JOB,)
    ),
    "flowcheck_audit_passed": MetricInfo(
        GAUGE, "Whether all audits since the last base passed.", (JOB,)
    ),
    "flowcheck_audit_equal_step": MetricInfo(
        GAUGE, "Last step that an audit found equal, before one that failed.", (JOB,)
    ),
    "flowcheck_audited_files_total": MetricInfo(
        COUNTER, "Files of the watched folder, by what came of them.", (JOB, "outcome")
    ),
    "flowcheck_durable_step": MetricInfo(GAUGE, "Step of the newest durable checkpoint.", (JOB,)),
    "flowcheck_durable_exact_step": MetricInfo(
        GAUGE, "Step of the newest durable checkpoint that is exact.", (JOB,)
    ),
    "flowcheck_durable_time_seconds": MetricInfo(
        GAUGE, "When the newest was made, since 1970.", (JOB,)
    ),
    "flowcheck_durable_lag_steps": MetricInfo(
        GAUGE, "Steps the replica took since the newest; all, without one.", (JOB,)
    ),
    "flowcheck_saves_total": MetricInfo(
        COUNTER, "Checkpoints saved since the chain began.", (JOB,)
    ),
    "flowcheck_save_attempts_failed": MetricInfo(
        GAUGE, "Attempts to save that failed since one did not.", (JOB,)
    ),
}


def metrics_text(state: ChainState, accept: str) -> tuple[bytes, str]:
    """(text, its content type), in the format that the scraper accepts."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    class Once:
        def collect(self) -> Iterable[Metric]:
            return metric_families(state)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    encoder, kind = choose_encoder(accept)
    text: bytes = encoder(registry)
    return text, kind


def metric_families(state: ChainState) -> Iterator[Metric]:
    """All metrics of a state, with help and labels, for the encoder of prometheus_client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for name, values, value in samples(state):
        told = METRICS[name]
        if name not in made:
            family = CounterMetricFamily if told.kind == COUNTER else GaugeMetricFamily
            made[name] = family(name, told.help, labels=told.labels)
        made[name].add_metric(values, value)
    yield from made.values()


Sample = tuple[str, tuple[str, ...], float]
"""(metric, values of its labels, value)"""


def samples(state: ChainState) -> Iterator[Sample]:
    """All samples of a state; unknown values are left out."""
    for word in HealthWord:
        yield "flowcheck_health", (word,), float(state.health.word is word)
    yield "flowcheck_over", (), float(state.in_order)
    yield "flowcheck_problems", (), len(state.problems)
    yield "flowcheck_unwritten_lines_total", (), state.unwritten_lines
    yield "flowcheck_packets_came_late_total", (), state.packets_came_late
    yield from _known("flowcheck_beat_age_seconds", (), state.beat_age_s)
    yield from _known("flowcheck_started_time_seconds", (), _seconds(state.started_ns))
    for kind, count in state.event_counts.items():
        yield "flowcheck_events_total", (kind,), count
    names = {job.number: job.name for job in state.jobs}
    for stage in state.stages:
        yield from _of_stage(stage, names.get(stage.job, str(stage.job)))
    for ring in state.rings if state.ended is None else ():
        yield from _of_ring(ring)
    for model in state.models:
        yield from _of_model(model)
    for job in state.jobs:
        yield from _of_job(job)
        if state.ended is None:
            yield from _under_way(job)
        if job.step_ns is not None:
            yield "flowcheck_step_age_seconds", (job.name,), (state.time_ns - job.step_ns) / 1e9


def _of_stage(stage: StageState, job: str) -> Iterator[Sample]:
    labels = (job, stage.name)
    yield "flowcheck_stage_up", labels, float(stage.pid is not None)
    yield "flowcheck_stage_restarts_total", labels, stage.restarts


def _of_ring(ring: RingState) -> Iterator[Sample]:
    own = (str(ring.number),)
    yield "flowcheck_ring_slots", own, ring.slots
    yield "flowcheck_ring_filled_slots", own, ring.filled_slots
    yield "flowcheck_captured_frames_total", own, ring.head
    yield "flowcheck_captured_bytes_total", own, ring.captured_bytes
    yield from _known("flowcheck_frame_age_seconds", own, ring.frame_age_s)
    yield "flowcheck_link_up", (*own, ring.source), float(ring.dark_s is None)
    yield "flowcheck_parsed_frames_total", own, ring.parsed
    yield "flowcheck_extracted_frames_total", own, ring.tail
    yield "flowcheck_missing_packets", own, ring.missing_packets
    for metric, counters in (
        ("flowcheck_lost_frames_total", ring.lost),
        ("flowcheck_frames_total", ring.verdicts),
        ("flowcheck_parse_total", ring.parse),
        ("flowcheck_extract_total", ring.extract),
    ):
        for counter, value in counters.items():
            yield metric, (*own, counter), value


def _of_model(model: ModelTaint) -> Iterator[Sample]:
    own = ("+".join(model.jobs),)
    yield "flowcheck_model_tainted_elements", own, model.tainted_elements
    for metric, value in (
        ("flowcheck_model_elements", model.all_elements),
        ("flowcheck_model_tainted_since_step", model.since),
        ("flowcheck_model_exact_step", model.exact_step),
    ):
        yield from _known(metric, own, value)


def _of_job(job: JobState) -> Iterator[Sample]:
    own = (job.name,)
    for word in HealthWord:
        yield "flowcheck_job_health", (*own, word), float(job.health.word is word)
    yield "flowcheck_learned", own, float(job.learned)
    yield "flowcheck_life", own, job.life
    yield "flowcheck_lost_steps_total", own, job.steps_lost
    older = 0 if job.tainted_elements else len(job.tainted)
    yield "flowcheck_tainted_parameters", own, older
    yield "flowcheck_tainted_elements", own, job.tainted_elements
    yield "flowcheck_healed_elements_total", own, job.healed_elements
    yield "flowcheck_asked_bytes_total", own, job.asked_bytes
    yield "flowcheck_assumptions", own, len(job.assumed)
    passed = None if job.audit_passed is None else float(job.audit_passed)
    for metric, value in (
        ("flowcheck_step", job.step),
        ("flowcheck_step_time_seconds", _seconds(job.step_ns)),
        ("flowcheck_arrived_step", job.arrived_step),
        ("flowcheck_update_seconds", job.update_seconds),
        ("flowcheck_under_way_ratio", job.under_way),
        ("flowcheck_audited_step", job.audited_step),
        ("flowcheck_audit_passed", passed),
        ("flowcheck_audit_equal_step", job.equal_step),
    ):
        yield from _known(metric, own, value)
    for outcome, count in (job.audited_files or {}).items():
        yield "flowcheck_audited_files_total", (*own, outcome), count
    if (kept := job.kept_steps) is not None:
        yield "flowcheck_kept_steps_bytes", own, kept.size_bytes
        yield from _known("flowcheck_kept_steps_first", own, kept.first_step)
        yield from _known("flowcheck_kept_steps_last", own, kept.last_step)
        yield "flowcheck_steps_not_kept_total", own, kept.not_kept
    if (copied := job.copy_of) is not None:
        yield "flowcheck_copy_lag_steps", own, copied.lag_steps
        yield "flowcheck_copy_lag_seconds", own, copied.lag_s
        yield "flowcheck_copy_received_bytes_total", own, copied.received_bytes
        yield "flowcheck_copy_source_answers", own, int(copied.answers)
    if (given := job.copied_by) is not None:
        yield "flowcheck_copies", own, len(given.followers)
        lags = [follower.lag_steps for follower in given.followers]
        yield "flowcheck_copies_lag_steps", own, max(lags, default=0)
    if (durable := job.durable) is not None:
        yield from _known("flowcheck_durable_step", own, durable.step)
        exact = durable.step if durable.doubt is None else durable.exact_step
        yield from _known("flowcheck_durable_exact_step", own, exact)
        yield from _known("flowcheck_durable_time_seconds", own, _seconds(durable.time_ns))
        yield "flowcheck_saves_total", own, durable.count


def _under_way(job: JobState) -> Iterator[Sample]:
    """Samples that exist only while the job is followed."""
    own = (job.name,)
    yield "flowcheck_lag_steps", own, job.lag_steps
    yield "flowcheck_lag_seconds", own, job.lag_ms / 1e3
    yield "flowcheck_waits_at_lost_step", own, float(job.lost_step is not None)
    yield "flowcheck_awaits_base", own, float(job.awaits_base)
    if job.arrival is not None:
        yield "flowcheck_silence_seconds", own, job.arrival.age_s
        yield "flowcheck_silence_limit_seconds", own, job.arrival.limit_s
    if (durable := job.durable) is not None:
        behind = max(0, (job.step or 0) - (durable.step or 0))
        yield "flowcheck_durable_lag_steps", own, behind
        yield "flowcheck_save_attempts_failed", own, durable.attempts


def _known(name: str, labels: tuple[str, ...], value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield name, labels, value


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
