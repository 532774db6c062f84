"""The trainer's step: which optimizer it is, with which settings, and how it is taken here."""
