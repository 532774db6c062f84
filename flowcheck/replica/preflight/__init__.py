"""Checks of the stated optimizer and of the user's code before a run starts."""
