"""Collectives that are in no plan: recognised, and left out."""
