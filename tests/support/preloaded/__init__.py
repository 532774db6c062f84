"""`python -m flowcheck ...` without the seconds that it loads for: forked from a process that has
loaded all of it.

A test that asks what a command does takes it from here. One whose subject is the process itself
(its words in /proc, what it loads, how it is executed) executes it with `subprocess`.
"""

from support.preloaded.commands import Popen, output, run

__all__ = ["Popen", "output", "run"]
