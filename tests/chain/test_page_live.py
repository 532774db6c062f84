"""A chain that loses frames on purpose, and the page of a watcher of it in a real Chromium."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chain import Command, wait_until
from support.chromium import MISSING, PATH, Tab, chromium
from support.free import free_port
from support.watched import paced

from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.run_directory.run_dir import RunDir

LOST_STEP = 10
WATCHED = """
window.seen = [];
const marks = ".column [data-shape=lost], .column [data-shape=missing]";
const asked = window.fetch;
window.fetch = async (...words) => {
  const answer = await asked(...words);
  const state = await answer.clone().json();
  const marked = state.jobs.some((job) => job.timeline.some((one) => one.missing || one.lost));
  seen.push([marked ? "marked" : "unmarked", Date.now()]);
  return answer;
};
new MutationObserver(() => {
  if (document.querySelector(marks) && !seen.some((one) => one[0] === "drawn")) {
    seen.push(["drawn", Date.now()]);
  }
}).observe(document, { subtree: true, childList: true });
"""
"""Writes down each state that the page was told, and when it first drew a mark of loss."""


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    if PATH is None:
        pytest.skip(MISSING)
    with chromium(tmp_path / "profile") as tab:
        yield tab()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_loss_is_drawn_with_the_first_answer_that_tells_of_it_and_a_dead_watcher_is_said(
    tab: Tab, tmp_path: Path
) -> None:
    """An answer is asked for each second: that, and the drawing, is all that lies between a loss
    that can be counted and its mark."""
    port, run = free_port(), RunDir(tmp_path / "run")
    paced(tmp_path / "c.pcap", from_step=7, lost_step=LOST_STEP, frame_every_s=0.02)
    (tmp_path / "job.toml").write_text(
        f'run = "{run.root}"\n[[source]]\nfile = "{tmp_path}/c.pcap"\nspeed = 1.0\n'
        f"[ring]\nslots = 4096\n[staging]\nsize_bytes = 16_777_216\n"
        f'[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n[watch]\nlisten = "127.0.0.1:{port}"\n'
    )
    with Command("watch", "--run", run.root, "--listen", f"127.0.0.1:{free_port()}") as own:
        assert own.process.stdout is not None
        url = own.process.stdout.readline().split()[4]
        tab.ask("Page.addScriptToEvaluateOnNewDocument", source=WATCHED)
        tab.open(url)
        tab.until("document.title.startsWith('STALE')")
        with Command("up", tmp_path / "job.toml", "--json") as up:
            tab.until("document.title.startsWith('EXACT')", 120)
            reader = StateReader(run.root, cached_s=0.0)
            wait_until(lambda: any(r.missing_packets for r in reader.state().rings), 120, "loss")
            countable_ms = time.time() * 1e3
            tab.until("seen.some((one) => one[0] === 'drawn')", 60)
            seen = tab.value("seen")
            words = [word for word, _ in seen]
            first, drawn = words.index("marked"), words.index("drawn")
            assert drawn == first + 1, f"a state that tells of it was passed over: {words}"
            print(f"drawn {seen[drawn][1] - countable_ms:.0f} ms after it was countable")
            tab.until(f"document.querySelector('#step-{LOST_STEP} [data-shape=lost]') !== null", 60)
            tab.until("document.title.startsWith('STALE')")
            shown = "[...document.querySelectorAll('.column')].filter((one) => "
            shown += "one.querySelector('[data-shape=missing]')).map((one) => one.id)"
            assert tab.value(shown) == [f"step-{LOST_STEP}"]
            assert f"step {LOST_STEP} was lost" in tab.value(
                "document.querySelector('#reason').textContent"
            )
            assert tab.complaints() == []
            up.process.send_signal(signal.SIGTERM)
            up.result()
        own.process.kill()
        tab.until("document.title.startsWith('NO ANSWER for')")
        assert "cannot be reached" in tab.value("document.querySelector('#reason').textContent")
