"""What is said of a job whose base is awaited."""

from __future__ import annotations


def awaited(steps: tuple[int, int] | None) -> str:
    """steps: the first and the last that is logged since the job was joined, (1, 0) where none is;
    None of a job whose start was seen."""
    if steps is None:
        return "the job began with a state that is not known: flowcheck base FILE gives it"
    held = f"its steps {steps[0]} to {steps[1]} since are logged"
    told = held if steps[1] else "nothing is logged yet"
    return (
        f"the job was joined amid its run; {told}: with two checkpoints of the trainer's, "
        "flowcheck base FILE --then LATER makes the replica go on"
    )
