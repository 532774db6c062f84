"""The page of states that mean harm, are large, or are seen without colour and on a telephone."""

from __future__ import annotations

import base64
import io
import itertools
from typing import Any

import msgspec
import pytest
from support.chromium import Tab
from support.shown import AT_ONCE, DRAWN, Told, hostile, large, marked, recorded, with_job

from flowcheck.ops.watch.monitoring_server import MonitoringServer
from flowcheck.ops.watch.state.chain_state import StepState

pytestmark = pytest.mark.xdist_group("page")
NARROW = "document.scrollingElement.scrollWidth <= innerWidth"
RIGHT_TO_LEFT, ESCAPE = "\u202e", "\x1b"
VISIBLE = "\u2039U+202E\u203aesrever"


def test_strings_that_mean_harm_are_shown_as_text_and_do_nothing(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    tab.open(server.url)
    tab.until(DRAWN)
    kinds = "[...new Set([...document.querySelectorAll('*')].map(one => one.localName))].sort()"
    before = tab.value(kinds)
    told.told = hostile(told.told)
    tab.value(AT_ONCE)
    tab.until("document.querySelector('.job h2').textContent.includes('</script><img src=x')")
    assert set(tab.value(kinds)) <= {*before, "wbr", "br"}
    name = tab.value("document.querySelector('.job h2 bdi').textContent")
    assert "onerror=alert(1)" in name and VISIBLE in name and "␛[31m" in name
    assert "characters)" in name and len(name) < 400
    assert RIGHT_TO_LEFT not in tab.text() and ESCAPE not in tab.text()
    assert tab.complaints() == [], "nothing was asked for, logged, thrown or refused"
    tab.size(360, 740)
    assert tab.value(NARROW)


def picture(tab: Tab, kind: str) -> Any:
    """A mark of the legend, four times as large: the page tells of a server that is slow to answer
    in a line of its own, and whatever is below then lies elsewhere."""
    from PIL import Image

    where = (
        f"document.querySelector('.legend [data-shape={kind}]').getBoundingClientRect().toJSON()"
    )
    for _ in range(20):
        box = tab.value(where)
        clip = {"x": box["x"], "y": box["y"], "width": 14, "height": 14, "scale": 4}
        taken = tab.ask("Page.captureScreenshot", clip=clip)["data"]
        if tab.value(where) == box:
            return Image.open(io.BytesIO(base64.b64decode(taken))).convert("RGB")
    raise AssertionError(f"{kind} does not stay where it is")


@pytest.mark.nightly
def test_every_mark_is_told_by_its_outline_and_by_words_where_no_colour_is_seen(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    from PIL import ImageChops

    told.told = with_job(told.told, timeline=marked())
    tab.ask("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")
    tab.open(server.url)
    tab.until("document.querySelectorAll('[role=option]').length === 7")
    words = ["lost", "missing", "healed", "tainted", "audit of it passed", "FAILED", "anchored"]
    named = tab.names("option")
    listed = tab.value("document.querySelector('#step-table').previousSibling.textContent")
    for number, word in enumerate(words, 1):
        assert word in next(name for name in named if name.startswith(f"step {number}:"))
        assert word.split()[-1].lower() in listed.lower()
    tab.size(1280, 2400)
    kinds = tab.value(
        "[...document.querySelectorAll('.legend [data-shape]')].map(o=>o.dataset.shape)"
    )
    used = tab.value(
        "[...document.querySelectorAll('.column [data-shape]')].map(o=>o.dataset.shape)"
    )
    assert set(used) == set(kinds) and len(kinds) == 7
    pictures = {kind: picture(tab, kind) for kind in kinds}
    for one in pictures.values():
        red, green, blue = one.split()
        assert ImageChops.difference(red, green).getextrema()[1] < 4, "no colour is left"
        assert ImageChops.difference(red, blue).getextrema()[1] < 4
    # What is left of the fills is made one: black where there is ink or fill, white elsewhere.
    outlines = {
        kind: one.convert("L").point(lambda v: 255 * (v > 200)) for kind, one in pictures.items()
    }
    for one, other in itertools.combinations(outlines, 2):
        apart = ImageChops.difference(outlines[one], outlines[other]).histogram()[255]
        assert apart > 0.04 * 56 * 56, f"{one} looks like {other}"


@pytest.mark.nightly
def test_a_telephone_needs_no_sideways_scrolling_in_light_or_dark_however_much_there_is(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    tab.open(server.url, width=360, height=740)
    tab.until(DRAWN)
    for state in (recorded("state.json"), large(told.told), with_job(told.told, timeline=())):
        told.told = state
        tab.value(AT_ONCE)
        rings, jobs = len(state.rings), len(state.jobs)
        tab.until(f"document.querySelectorAll('.rings li').length === {rings}")
        for scheme in ("light", "dark"):
            wanted = [{"name": "prefers-color-scheme", "value": scheme}]
            tab.ask("Emulation.setEmulatedMedia", features=wanted)
            pressed = tab.value("document.querySelectorAll('.jobs [aria-pressed=true]').length")
            assert pressed == (jobs > 1), "the job that is shown is marked among several"
            assert tab.value(NARROW), f"{jobs} jobs, {rings} rings, {scheme}"
            assert tab.value(CONTRAST) == [], scheme
    assert tab.complaints() == []


CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => parts(text).slice(0, 3).map((one) => one / 255)
    .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = getComputedStyle(node).backgroundColor;
      if ((parts(found)[3] ?? 1) > 0) return found;
    }
    return "rgb(255, 255, 255)";
  };
  const walk = document.createTreeWalker(document.querySelector("#page"), NodeFilter.SHOW_TEXT);
  const faint = new Set();
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    if (!text.data.trim()) continue;
    const style = getComputedStyle(text.parentElement);
    const ink = light(text.parentElement.ownerSVGElement ? style.fill : style.color);
    const paper = light(ground(text.parentElement));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) faint.add(`${ratio.toFixed(2)}: ${text.data.slice(0, 40)}`);
  }
  return [...faint];
})()"""
"""Words whose contrast is below 4.5 (WCAG 2.2, 1.4.3 and its relative luminance)."""


MEASURED = ("Nodes", "JSEventListeners", "Documents")
ASK_20 = """(async () => {
  for (let each = 0; each < 20; each++) {
    dispatchEvent(new Event("online"));
    await new Promise((go) => setTimeout(go, 50));
  }
})()"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_hundreds_of_answers_leave_a_tab_no_larger_than_the_first(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    """By the browser's own count, once what nothing refers to is gone."""
    told.told = large(told.told)
    tab.open(server.url)
    tab.until(f"{DRAWN} && document.querySelectorAll('.rings li').length === 64", 60)
    tab.ask("Performance.enable")

    def held(answers: int) -> dict[str, float]:
        for number in range(answers // 20):
            rings = told.told.rings
            moved = (msgspec.structs.replace(one, fill=number % 97 / 97) for one in rings)
            told.change(rings=tuple(moved))
            tab.ask("Runtime.evaluate", expression=ASK_20, awaitPromise=True)
        tab.ask("HeapProfiler.collectGarbage")
        found = tab.ask("Performance.getMetrics")["metrics"]
        return {one["name"]: one["value"] for one in found}

    before = held(140)  # the lines of the last minute are as long as they get
    after = held(600)
    for name in MEASURED:  # one kept of each answer would be 600
        assert after[name] < before[name] + 100, name
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] + (4 << 20)


@pytest.mark.nightly
def test_of_a_hundred_thousand_steps_the_newest_are_drawn(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    steps = tuple(StepState(step=n, arrived_ns=n, applied_ns=n) for n in range(1, 100_001))
    told.told = with_job(told.told, timeline=steps)
    tab.open(server.url)
    tab.until("document.querySelectorAll('[role=option]').length > 0", 60)
    columns = tab.value("[...document.querySelectorAll('[role=option]')].map((one) => one.id)")
    assert 120 <= len(columns) < 1000 and columns[-1] == "step-100000"
    assert columns == [f"step-{n}" for n in range(100_001 - len(columns), 100_001)]


@pytest.mark.nightly
def test_the_browser_would_refuse_whatever_a_mistake_of_ours_let_in(
    tab: Tab, server: MonitoringServer
) -> None:
    tab.open(server.url)
    tab.until(DRAWN)
    refused = "(() => { try { %s; return 'done'; } catch (error) { return error.name; } })()"
    assert tab.value(refused % "document.body.innerHTML = '<p>x'") == "TypeError"
    assert tab.value(refused % "document.createElement('script').text = 'alert(1)'") == "TypeError"
    tab.value("(() => { const a = new Image(); a.src = 'https://example.org/x.png'; })()")
    tab.until("true")
    told = " ".join(tab.complaints())
    assert "img-src data:" in told and "TrustedHTML" in told
