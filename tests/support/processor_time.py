"""What each test takes of the processor, and a bound on it: the run says what is costliest.

Seconds of the processor and not of the clock: other work on the machine hardly changes them. They
are user and system time of the process that runs the test, of the children it waited for, and of
those that live (a server of forked commands). What a child left behind in another session, and
nobody waited for, is missing: a chain that outlives its command, a host of the lab.

Hooks of pytest are called with the reports of all workers where there are several.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

NAME = "processor_s"
TOLD = 15
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
ONE = "--processor-seconds"
ALL = "--processor-seconds-of-all"


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("processor time")
    group.addoption(ONE, type=float, help="fails where a test of the day takes more of them")
    group.addoption(ALL, type=float, help="fails where all tests of the day together do")


def spent_s() -> float:
    """Of this process and all below it, since it began; s."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system + _living_s("self")


def _living_s(process: str) -> float:
    """Of the children of a process that live, and of theirs; s."""
    spent = 0.0
    with suppress(OSError):  # one that ends meanwhile
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                # proc(5): utime, stime, cutime and cstime are the 14th to the 17th.
                words = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                spent += sum(map(int, words[11:15])) * TICK_S + _living_s(child)
    return spent


class ProcessorTime:
    """A plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self.one: float | None = config.getoption(ONE)
        self.all: float | None = config.getoption(ALL)
        self.by_day: dict[str, float] = {}
        self.by_night: dict[str, float] = {}
        self.began = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.began = spent_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
        report = yield
        if call.when == "teardown":
            spent = max(0.0, spent_s() - self.began)  # what left its parent is gone from the sum
            night = item.get_closest_marker("nightly") is not None
            report.user_properties.append((NAME, (round(spent, 2), night)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == NAME:
                spent, night = value
                (self.by_night if night else self.by_day)[report.nodeid] = spent

    def refused(self) -> list[str]:
        """What is above a bound, in words."""
        above = [
            f"{test} took {spent:.1f} s of the processor, of {self.one:.0f} that a test of the day"
            " may take: make it cheaper, or mark what is a sweep as nightly"
            for test, spent in sorted(self.by_day.items())
            if self.one is not None and spent > self.one
        ]
        whole = sum(self.by_day.values())
        if self.all is not None and whole > self.all:
            above.append(
                f"the tests of the day took {whole:.0f} s of the processor, of {self.all:.0f}"
            )
        return above

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        of_all = self.by_day | self.by_night
        if len(of_all) < 2:
            return
        terminalreporter.section(f"{sum(of_all.values()):.0f} s of the processor; the costliest")
        for test, spent in sorted(of_all.items(), key=lambda one: -one[1])[:TOLD]:
            terminalreporter.line(f"{spent:7.1f} s {test}")
        for line in self.refused():
            terminalreporter.line(line, red=True)
