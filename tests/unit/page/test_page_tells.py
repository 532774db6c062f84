"""What a person sees, hears and reaches of the page, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.chromium import Tab
from support.shown import AT_ONCE, DRAWN, Told, recorded, serving, with_job

from flowcheck.findings.catalog.chain_processes import NEWEST_NOT_EXACT, SAVE_AUDIT_FAILED
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.striped_saves import NOT_THERE, SAVED_WITHOUT
from flowcheck.ops.watch.monitoring_server import MonitoringServer
from flowcheck.ops.watch.state.chain_state import Health, HealthWord, StepState
from flowcheck.ops.watch.state.stage_processes import RATE_SPAN_S
from flowcheck.ops.watch.state.step_history import RATE_STEPS
from flowcheck.step_numbers import Step

pytestmark = pytest.mark.xdist_group("page")
LATER = "(() => { const now = Date.now; Date.now = () => now() + 60000; })()"
"""A minute passes on the reader's clock."""
ALL_DRAWN = "[...document.querySelectorAll('svg *')].every((one) => one instanceof SVGElement)"
DASH = "\N{EN DASH}"


def test_the_word_of_health_and_its_reason_come_first_each_with_a_shape_of_its_own(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    tab.open(server.url)
    shapes = set()
    for word in HealthWord:
        reason = f"it is {word} for a reason"
        told.change(health=Health(word=word, reason=earlier_finding(reason)))
        tab.value(AT_ONCE)
        tab.until(f"document.title.startsWith('{word.upper()} · step 69')")
        said = tab.value("document.querySelector('#said').textContent")
        assert said == f"Health: {word.capitalize()}"
        first = tab.value("document.querySelector('#page').innerText").split("\n")
        assert [line for line in first if line.strip()][:2] == [word.capitalize(), reason]
        shapes.add(tab.value("document.querySelector('.badge').innerHTML"))
    assert len(shapes) == len(HealthWord)
    assert tab.value(ALL_DRAWN), "what is put into a drawing later is drawn as well"
    assert tab.complaints() == []


def test_a_durable_save_that_is_not_exact_is_told_with_the_one_that_is(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    tile = (
        "[...document.querySelectorAll('.tile')].find(o => o.innerText.match(/durable/i)).innerText"
    )
    durable = told.told.jobs[0].durable
    assert durable is not None and durable.step is not None
    doubt = NEWEST_NOT_EXACT(step=durable.step, why=SAVE_AUDIT_FAILED(step=8))
    for exact, value in ((Step(7), "step 7"), (None, "none exact")):
        changed = msgspec.structs.replace(durable, doubt=doubt, exact_step=exact, exact_name="x")
        told.told = with_job(told.told, durable=changed)
        tab.open(server.url)
        tab.until(DRAWN)
        tab.until(f"{tile}.includes({value!r})")
        assert str(doubt) in tab.value(tile)
    short = SAVED_WITHOUT(name="step-9", took=5, stores=6, left=1, why=[NOT_THERE("/mnt/b")])
    told.told = with_job(told.told, durable=msgspec.structs.replace(durable, short=short))
    tab.until(f"{tile}.includes({str(short)!r})")
    assert tab.complaints() == []


def test_drawing_and_table_tell_of_every_step_what_the_state_tells(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    tab.open(server.url)
    tab.until(DRAWN)
    tab.value("document.querySelector('#step-table summary').click()")
    tab.until("document.querySelectorAll('#step-table tbody tr').length > 0")
    steps = {one.step: one for one in told.told.jobs[0].timeline}
    rows = tab.value(
        "[...document.querySelectorAll('#step-table tbody tr')].map(row => [...row.cells].map("
        "cell => cell.querySelector('time') ? Date.parse(cell.querySelector('time').dateTime)"
        " : cell.textContent))"
    )
    assert [int(row[0]) for row in rows] == sorted(steps, reverse=True)
    for number, arrived, applied, _, durable, befell in rows:
        one = steps[int(number)]
        times = (one.arrived_ns, one.applied_ns, one.durable_ns)
        assert [arrived, applied, durable] == [ns // 10**6 if ns else DASH for ns in times]
        wanted = (
            one.lost and str(one.lost),
            one.missing and str(one.missing),
            one.healed and "healed",
        )
        assert all(word in befell for word in wanted if word)
        assert bool(befell) == any(wanted)
    columns = "[...document.querySelectorAll('[role=option]')]"
    assert tab.value(f"{columns}.map(one => one.id)") == [f"step-{step}" for step in sorted(steps)]
    full = tab.value(f"{columns}.map(one => one.querySelectorAll('.full').length)")
    saved = tab.value(f"{columns}.map(one => one.querySelectorAll('.saved').length)")
    each = [steps[step] for step in sorted(steps)]
    assert full == [bool(one.arrived_ns) + bool(one.applied_ns) for one in each]
    assert saved == [int(bool(one.durable_ns)) for one in each]


def test_logged_steps_are_no_applied_ones_and_the_newest_are_in_sight_on_a_telephone(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    steps = tuple(StepState(step=n, arrived_ns=n, logged=True) for n in range(1, 61))
    parts = {
        "step": 131,
        "lost_step": 132,
        "lost_why": earlier_finding("half never came"),
        "awaits_base": True,
    }
    told.told = with_job(told.told, timeline=steps, logged=(1, 60), lag_steps=60, **parts)
    tab.open(server.url, width=360, height=740)
    tab.until(f"{DRAWN} && document.querySelectorAll('[role=option]').length === 60")
    box = "document.querySelector('#columns')"
    at_end = f"{box}.scrollLeft > 50 && {box}.scrollLeft+{box}.clientWidth >= {box}.scrollWidth - 4"
    tab.until(at_end)
    tab.size(1280, 900)
    tab.until(f"{box}.clientWidth > 600")
    tab.size(360, 740)
    tab.until(at_end)
    moment = f"{box}.style.width = '9000px'; {box}.scrollLeft; {box}.style.width = ''"
    tab.value(f"{moment}; {box}.scrollLeft; dispatchEvent(new Event('resize'))")
    tab.until(at_end)  # wide and narrow again before a frame: no choice of the reader's
    assert all("logged, waits for a base" in name for name in tab.names("option"))
    text = tab.text()
    assert "step 132 was lost" in text and "joined midstream" in text and "60 steps" in text
    assert "Nothing was lost" not in text and "with a later one" not in text
    tab.value(f"{box}.scrollLeft = 40")
    again = (*steps, StepState(step=61, arrived_ns=61, logged=True))
    told.told = with_job(told.told, timeline=again)
    tab.value(AT_ONCE)
    tab.until("document.querySelectorAll('[role=option]').length === 61")
    assert tab.value(f"{box}.scrollLeft") == 40, "the reader went back"


@pytest.mark.parametrize("width", [360, 1280])
def test_a_stated_port_is_named_at_its_end_of_a_link_and_directions_at_no_other(
    tab: Tab, server: MonitoringServer, told: Told, width: int
) -> None:
    drawn = "[...document.querySelectorAll('svg.ring text')].map((one) => one.textContent)"
    ways = f"{drawn}.filter((one) => one === 'rx' || one === 'tx').sort()"
    tab.open(server.url, width=width, height=740)
    tab.until(DRAWN)
    assert (
        sorted(word for word in tab.value(drawn) if word in ("rx", "tx")) == ["rx"] * 2 + ["tx"] * 2
    )
    assert "which ones are is not stated" in tab.text()
    assert f"rates of the last {RATE_SPAN_S:.0f} s" in tab.text(), "a rate names its span"
    assert f"steps/s (last {RATE_STEPS})" in tab.text()
    told.told = recorded("state.json")
    tab.value(AT_ONCE)
    tab.until(f"{drawn}.includes('leaf0 Ethernet1/1')")
    assert tab.value(ways) == ["rx", "tx"]
    assert "all 3 chunks seen; 1 more without a byte" in tab.text()
    ends = tab.value("[...document.querySelectorAll('td.ends')].map((one) => one.innerText)")
    links = told.told.jobs[0].diagram[0].links
    for text, link, wanted in zip(
        ends,
        links,
        (
            "from fe80::a00:4\ntx leaf0 Ethernet1/1, to fe80::a00:1\n",
            "rx leaf0 Ethernet1/1, from fe80::a00:1\nto fe80::a00:2\n",
        ),
        strict=True,
    ):
        assert text.startswith(wanted)
        words = text.removeprefix(wanted).split()
        assert words[:2] == ["Channels", "0"] and words[-2:] == ["Carries", *link.protocols]
        assert words[2:4] == ["QPs", str(link.queue_pairs[0])]
    cells = "[...document.querySelectorAll('td.ends, .scroll')]"
    assert tab.value(f"{cells}.every((one) => one.scrollWidth <= one.clientWidth)")
    assert tab.value("document.body.scrollWidth <= innerWidth")


def test_a_watcher_that_is_gone_or_stands_still_is_said_at_the_top_and_in_the_title(
    tab: Tab, browser: Callable[[], Tab], told: Told
) -> None:
    still = Told(recorded("state.json"))
    other = browser()
    with serving(still) as standing:
        with serving(told) as server:
            tab.open(server.url)
            other.open(standing.url)
            for each in (tab, other):
                each.until(DRAWN)
            still.moves, told.gone = False, True
            for each in (tab, other):
                each.value(LATER)
        is_said(tab, other)
    other.close()
    told.gone = False
    with serving(told, f"127.0.0.1:{server.server_address[1]}"):
        tab.value("document.querySelector('.warnings button')?.click()")
        tab.until("document.title.startsWith('STALE · step 69')")


def is_said(gone: Tab, still: Tab) -> None:
    for each, title, reason in (
        (gone, "NO ANSWER for", "cannot be reached"),
        (still, "OLD for", "what it reads does not change"),
    ):
        each.until(f"document.title.startsWith('{title}')")
        assert reason in each.text().split("Steps")[0]
        assert "not what is now" in each.text() and "step 69" in each.text()
        assert each.value("document.querySelector('#said').textContent").endswith("is old")
        shown = each.value("document.querySelector('.tile .more').textContent")
        assert "steps/s" not in shown, "no rate is told of what may have stopped"


def test_a_browser_that_gives_the_word_once_shows_the_page_and_goes_on_asking(
    tab: Tab, told: Told, tmp_path: Path
) -> None:
    word = tmp_path / "word"
    word.write_text("a-word-of-sixteen-and-more\n")
    word.chmod(0o600)
    with serving(told, token_file=word) as server:
        tab.open(server.url.replace("//", "//anyone:a-word-of-sixteen-and-more@"))
        tab.until("document.title.startsWith('STALE · step 69')")
        told.change(health=Health(word=HealthWord.EXACT, reason=earlier_finding("it came back")))
        tab.until("document.title.startsWith('EXACT · step 69')")


def test_those_who_hear_the_page_or_have_no_mouse_reach_all_of_it(
    tab: Tab, told: Told, server: MonitoringServer
) -> None:
    tab.open(server.url)
    tab.until(DRAWN)
    regions = ["Job job-1", "Steps of job-1", "Loss by kind", "Rings of the mirror ports"]
    wanted = [*regions, "Stages", "Event history", "Ring and mirrored ports"]
    assert set(wanted) <= set(tab.names("region"))
    assert "Stale" in tab.names("heading") and tab.names("main") == [""]
    assert tab.names("listbox") == ["Steps of job-1, oldest first; arrow keys choose one"]
    assert tab.names("image") == ["Ring of 4 nodes; mirrored links: 3 to 0, 0 to 1"]
    assert tab.names("meter") == ["Fill of ring 0"]
    assert all(tab.names("button")) and all(tab.names("option"))
    tab.value("document.querySelector('#columns').focus()")
    last = max(one.step for one in told.told.jobs[0].timeline)
    keys = (("ArrowLeft", last - 1), ("ArrowLeft", last - 2), ("Home", 1), ("End", last))
    for key, step in keys:
        for kind in ("keyDown", "keyUp"):
            tab.ask("Input.dispatchKeyEvent", type=kind, key=key)
        tab.until(f"document.querySelector('#chosen-step h3').textContent === 'Step {step}'")
        chosen = tab.value("document.querySelector('[aria-selected=true]').id")
        assert chosen == tab.value(
            "document.querySelector('#columns').getAttribute('aria-activedescendant')"
        )
    tab.value("document.querySelector('.marked button .mark-lost').closest('button').click()")
    tab.until("document.querySelector('#chosen-step').textContent.includes('every flow went on')")
