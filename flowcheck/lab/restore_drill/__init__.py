"""Drills: a job is followed, killed, restored and resumed, and the result is compared with the
trainer's."""
