"""More files of the trainer's, for what one of them does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flowcheck.ops.giving.steps import Found
from flowcheck.replica.rules.settings import numbering
from flowcheck.vault.seen import Seen, others_in
from flowcheck.vault.template import load_template


def with_also(found: Found, files: Sequence[Path]) -> Found:
    """The step, and what else of the model these files show. Raises StateError where one is no
    checkpoint of a model of this layout, or does not tell of which step it is."""
    if not files:
        return found
    taken = found.snapshot
    order = numbering(taken.optimizer, taken.layout)
    more = []
    for file in files:
        template = load_template(file, taken.layout, found.names, order=order)
        more.append(Seen(template.step, others_in(template, template.others)))
    return replace(found, seen=(*found.seen, *more))
