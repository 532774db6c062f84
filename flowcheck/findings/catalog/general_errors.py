"""Findings of errors: a setting that is refused, and text that a system call or a library gave."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

SETTING_REFUSED = Entry("setting.refused", "{key} = {value}: {right}")
ERROR_TEXT = Entry("error.text", "{text}", also=("kind",))
"""kind: of FlowCheck's error; the text is not ours alone."""
CORE_REFUSED = Entry("error.core_refused", "{what}: {error}", also=("errno",))
"""error: C's sentence; errno: its name."""
