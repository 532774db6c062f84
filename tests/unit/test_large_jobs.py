"""Jobs whose weights do not fit one broadcast, by messages of right sizes alone."""

from __future__ import annotations

from support.large_jobs import BROADCAST_BYTES, gpt_shapes, large_job

from flowcheck.wire.learn import read_stream

LARGE = gpt_shapes(10, 800)
"""0.5 GB: weights come in two broadcasts."""


def test_weights_in_several_broadcasts_are_learned() -> None:
    large = large_job(LARGE, ranks=4, channels=2)
    size = 4 * large.parameters
    assert size > BROADCAST_BYTES
    reading = read_stream(large.flows, large.messages, results=False, ended=False)
    job, weights = reading.job, reading.weights
    assert job is not None and weights is not None, reading.why_not
    assert tuple(parameter.sizes for parameter in job.parameters) == LARGE
    assert {parameter.element_bytes for parameter in job.parameters} == {4}
    assert [list(bucket) for bucket in job.buckets] == large.buckets
    assert (weights.shapes, weights.bytes, weights.complete) == (LARGE, size, True)
    sent = [c.bytes for c in reading.collectives if c.meaning == "initial weights"]
    assert len(sent) > 1 and sum(sent) == size and min(sent[:-1]) >= BROADCAST_BYTES
