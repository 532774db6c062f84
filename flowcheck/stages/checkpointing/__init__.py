"""Replica steps saved to storage, and served over HTTP."""
