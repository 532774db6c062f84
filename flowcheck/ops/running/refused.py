"""What a verb ends with where the operator can mend it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from flowcheck.errors import FlowCheckError

OPERATOR_ERROR = 2


def in_words(run: Callable[[], object]) -> None:
    """Runs a verb: our own errors are one sentence and exit code 2."""
    try:
        run()
        return
    except FlowCheckError as error:
        sentence = str(error)
    except OSError as error:
        if error.filename is None:
            raise
        sentence = f"{error.filename}: {error.strerror}"
    from flowcheck.ops.running.progress import ERROR, say

    say(sentence, ERROR)
    sys.exit(OPERATOR_ERROR)
