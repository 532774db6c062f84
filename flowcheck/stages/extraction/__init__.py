"""Payload bytes of a learned job placed at their gradient address, and counted."""
