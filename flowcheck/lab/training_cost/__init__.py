"""Measures what checkpoints cost the trainers."""
