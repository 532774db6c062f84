"""The trainer's optimizer as the job file states it: class, parameter groups, schedule, states,
master weights."""
