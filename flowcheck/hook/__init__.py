"""The hook: lets a trainer answer, between two steps, what some elements of its state are.

Off unless the trainer is launched with it. It reads, and changes nothing. README.md says how it is
launched and what it costs.
"""
