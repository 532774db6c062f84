"""Compares the trainer's checkpoints with the replica, bit for bit, and with the job file."""
