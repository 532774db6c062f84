"""Checkpoints: writes applied steps in checkpoint formats, saves, serves, downloads and audits
them."""
