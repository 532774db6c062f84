"""What a verb ends with where the operator can mend it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from flowcheck.errors import FlowCheckError, has_no_room

OPERATOR_ERROR = 2
NO_ROOM = (
    "there is no room left on the file system of the run directory, of the checkpoints or of "
    "shared memory: df shows which one is full"
)


def in_words(run: Callable[[], object]) -> None:
    """Runs a verb: our own errors are one sentence and exit code 2."""
    try:
        run()
        return
    except FlowCheckError as error:
        sentence = str(error)
    except OSError as error:
        if error.filename is None and not has_no_room(error):
            raise
        sentence = f"{error.filename}: {error.strerror}" if error.filename else NO_ROOM
    from flowcheck.ops.running.progress import ERROR, say

    say(sentence, ERROR)
    sys.exit(OPERATOR_ERROR)
