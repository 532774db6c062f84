"""A running chain as others see it: one state, and what is made of it."""
