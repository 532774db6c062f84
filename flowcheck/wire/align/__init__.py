"""Lays what a program expects over what each connection carried."""

# The aligner lays by records of the learner, which asks it in turn: the learner is there first.
import flowcheck.wire.learn  # noqa: F401
