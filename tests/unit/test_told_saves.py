"""Where a person looks for the last save: the newest that is exact, and why a newer one is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families as plain
from support.persisting import replica_of
from support.shown import recorded
from test_doubted_checkpoints import fail
from test_doubts_at_target import run, saved, target
from test_doubts_of_other_pasts import Stage
from test_doubts_over_http import differs
from test_persist_stage import told
from test_watch_top import shown

from flowcheck.findings.catalog.how_chains_end import SIGNAL_INT
from flowcheck.ops.lifecycle import shutdown_cleanup
from flowcheck.ops.watch.prometheus_metrics import metrics_text
from flowcheck.ops.watch.state import checkpoint_status
from flowcheck.ops.watch.state.chain_state import (
    ChainEnd,
    ChainState,
    DurableCheckpoint,
    EndKind,
    JobEnd,
)
from flowcheck.ops.watch.state.shutdown_record import end_sentences
from flowcheck.stages.run_directory.run_dir import RunDir

__all__ = ["run", "target"]


def of_job(durable: DurableCheckpoint) -> ChainState:
    state = recorded("state.json")
    job = msgspec.structs.replace(state.jobs[0], durable=durable)
    return msgspec.structs.replace(state, jobs=(job,))


def exact_in_metrics(durable: DurableCheckpoint) -> list[float]:
    text = metrics_text(of_job(durable), "")[0].decode()
    samples = [sample for family in plain(text) for sample in family.samples]
    return [one.value for one in samples if one.name == "flowcheck_durable_exact_step"]


@pytest.mark.parametrize("why", ["audit", "copies"])
def test_the_newest_exact_save_is_told_and_why_a_newer_one_is_not(
    run: RunDir, target: Path, why: str
) -> None:
    saved(run, 6)
    service = Stage(run)
    service.works()
    before = told(run)
    assert (before.step, before.exact_step, before.doubt) == (6, None, None)
    assert exact_in_metrics(before) == [6]
    reason = "an audit of step 5 failed"
    if why == "audit":
        fail(run)  # of step 5, where step 3 was equal
    else:
        differs(run, 4, 6)
        reason = "copies of step 4 differed"
    service.works()
    now = told(run)
    assert (now.step, now.exact_step, now.exact_name) == (6, 3, "step-3")
    assert now.exact_time_ns is not None and now.time_ns is not None
    assert now.exact_time_ns < now.time_ns
    [first, (second, found)] = checkpoint_status.checkpoint_sentences(now, 6)
    assert first[0].startswith("last exact durable checkpoint: step 3, ")
    assert first[0].endswith(f", 3 steps behind, in {target}/step-3")
    sentence = f"the newest save, of step 6, is not called exact: {reason}"
    assert sentence in second and str(found) == sentence
    screen = " ".join(shown(of_job(now), width=200).split())
    assert sentence in screen and "step 3, " in screen
    assert " ago (6 in doubt)" in screen
    assert exact_in_metrics(now) == [3]


def test_where_no_save_is_exact_that_is_told(run: RunDir) -> None:
    saved(run, 2)
    differs(run, 1, 2)
    service = Stage(run)
    service.works()
    now = told(run)
    assert (now.step, now.exact_step, now.exact_age_s) == (2, None, None)
    [first, (second, _)] = checkpoint_status.checkpoint_sentences(now, 2)
    assert first[0].startswith("last durable checkpoint: step 2, ")
    assert "not called exact: copies of step 1 differed" in second
    assert exact_in_metrics(now) == []
    assert "none exact (step 2)" in shown(of_job(now), width=200)


def test_at_its_end_a_chain_tells_it_too_and_offers_the_exact_one(
    run: RunDir, target: Path
) -> None:
    saved(run, 6)
    fail(run)
    replica_of(run).close()
    [kept], why = shutdown_cleanup.save_replicas(run.settings(), run)
    assert why is None and kept is not None
    job = msgspec.structs.replace(recorded("state.json").jobs[0], durable=told(run))
    result = JobEnd(step=6, checkpoint=str(target / "step-6"))
    end = ChainEnd(how=EndKind.ASKED, by=SIGNAL_INT(), time_ns=1, jobs=(result,))
    job = checkpoint_status.with_final_checkpoint(job, end)
    assert job.durable is not None
    assert (job.durable.step, job.durable.exact_step) == (6, 3)
    state = msgspec.structs.replace(recorded("state.json"), jobs=(job,), ended=end)
    assert f"--checkpoint {target}/step-3 " in [text for text, _ in end_sentences(state)][-1]
