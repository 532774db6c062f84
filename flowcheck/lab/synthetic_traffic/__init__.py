"""Synthetic frames of a training job, without running one."""
