"""The dashboard and the alerts, judged by Prometheus' own tool; what they name, we tell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.watched import MONITORING, REPOSITORY, expressions
from test_remedy_commands import refusal

from flowcheck.ops.watch.prometheus_metrics import METRICS
from flowcheck.ops.watch.state.chain_state import HealthWord
from flowcheck.stages.chain_events.event_log import EventKind

EXPRESSION = re.compile(r"expr: (.+(?:\n {10}.+)*)")
"""Of a rule, be it on one line or folded."""
NAME = re.compile(r"\bflowcheck_\w+")
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
ALERTS = (MONITORING / "alerts.yml").read_text()


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: apt-get install prometheus")
    return found


def checked(*words: str | Path) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_configuration_are_taken_and_alert_when_they_should(promtool: str) -> None:
    checked(promtool, "check", "config", MONITORING / "prometheus.yml")
    checked(promtool, "check", "rules", MONITORING / "alerts.yml")
    checked(promtool, "test", "rules", REPOSITORY / "tests/data/watch/alerts-test.yml")


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_rule_that_is_changed_fails_its_test(promtool: str, tmp_path: Path) -> None:
    """The judge itself is judged: every alert's condition is held by some case."""
    case = (REPOSITORY / "tests/data/watch/alerts-test.yml").read_text()
    (tmp_path / "case.yml").write_text(
        re.sub(r"\S+/alerts\.yml", str(tmp_path / "alerts.yml"), case)
    )
    rules = re.findall(EXPRESSION, ALERTS)
    assert len(rules) == ALERTS.count("- alert:") + ALERTS.count("- record:")
    without = [
        line for expr in rules for line in expr.splitlines() if line.strip().startswith("unless ")
    ]
    assert len(without) > 5
    for expr, instead in [*((f"expr: {e}\n", "expr: vector(0) > 1\n") for e in rules),
                          *((f"{line}\n", "") for line in without)]:  # fmt: skip
        (tmp_path / "alerts.yml").write_text(ALERTS.replace(expr, instead))
        done = subprocess.run(
            [promtool, "test", "rules", tmp_path / "case.yml"], capture_output=True, check=False
        )
        assert done.returncode != 0, expr


def test_every_expression_of_the_dashboard_is_one(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": one} for n, one in enumerate(expressions(DASHBOARD))]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    checked(promtool, "check", "rules", tmp_path / "rules.yml")


def test_dashboard_and_alerts_name_metrics_and_words_that_are_told() -> None:
    told = set(METRICS)
    for expr in expressions(DASHBOARD):
        assert set(NAME.findall(expr)) <= told, expr
    exprs = re.findall(EXPRESSION, ALERTS)
    told |= set(re.findall(r"- record: \w+:(\w+):", ALERTS))
    assert all(set(NAME.findall(expr)) <= told for expr in exprs)
    text = ALERTS + json.dumps(DASHBOARD).replace('\\"', '"')
    words = set(re.findall(r'\bword="(\w+)"', text))
    assert words and words <= set(HealthWord)
    kinds = {
        kind for some in re.findall(r'kind!?[=~]+"([\w|]+)"', text) for kind in some.split("|")
    }
    assert kinds <= set(EventKind)
    legends = {t["legendFormat"] for panel in DASHBOARD["panels"] for t in panel["targets"]}
    labels = {one for legend in legends for one in re.findall(r"{{(\w+)}}", legend)}
    assert labels <= {label for metric in METRICS.values() for label in metric.labels}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_commands_of_the_alerts_run_and_act_on_a_run_that_is_named() -> None:
    """Pasted without `--run` they would act on the default run."""
    texts = re.findall(r"^ +description: (.*)$", ALERTS, re.M)
    spans = [span for text in texts for span in text.split("`")[1::2]]
    commands = [span.removeprefix("flowcheck ") for span in spans if span.startswith("flowcheck ")]
    assert len(commands) > 5 and not [refusal(one) for one in commands if refusal(one)]
    assert all("--run DIR" in one or one == "up JOB.toml" for one in commands)
    outside = "".join(part for text in texts for part in text.split("`")[::2])
    assert not re.search(r"flowcheck [a-z]", outside)


def test_the_page_tells_of_every_metric_alert_event_and_word() -> None:
    page = (REPOSITORY / "flowcheck/ops/watch/README.md").read_text()
    for name, told in METRICS.items():
        assert f"| `{name}` | {', '.join(told.labels)} | {told.help} |" in page
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS))
    assert set(re.findall(r"`(FlowCheck\w+)`", page)) == alerts
    named = {word for row in re.findall(r"^\| (.*?) \|", page, re.M) for word in row.split("`")}
    assert set(EventKind) | set(HealthWord) <= named
