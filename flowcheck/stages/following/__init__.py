"""The bytes of a learned job, placed and counted."""
