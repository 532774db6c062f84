"""Which of several jobs a path is of: /jobs/K/..., K its name, or its number from 1."""

from __future__ import annotations

from collections.abc import Mapping

from flowcheck.vault.serve.catalogue import Catalogue

ALONE = ""
"""In place of a job's name where there is but one, which needs no path of its own."""
NUMBER_MAX = 999


def job_of(
    words: list[str], jobs: Mapping[str, Catalogue]
) -> tuple[Catalogue, list[str]] | str | None:
    """(what is asked, the rest of the path); None: the names are; or why it is of none."""
    if ALONE in jobs:
        return jobs[ALONE], words
    names = list(jobs)
    match words:
        case ["" | "jobs"]:
            return None
        case ["jobs", name, *rest] if name in jobs:
            return jobs[name], rest or ["steps"]
        case ["jobs", word, *rest] if word in map(str, range(1, min(len(names), NUMBER_MAX) + 1)):
            return jobs[names[int(word) - 1]], rest or ["steps"]
    return f"there are several jobs here: {', '.join(f'/jobs/{name}/steps' for name in names)}"
