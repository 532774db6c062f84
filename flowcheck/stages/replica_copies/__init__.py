"""Copies of a replica on other machines: what the first chain gives, and how a copy follows it
(README.md)."""
