"""The job a trainer will go on doing, or why there is none to follow."""
