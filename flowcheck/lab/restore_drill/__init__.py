"""Drills: a job is followed, killed, restored, resumed and compared."""
