"""Port mirroring on switches: mirror sessions, switch platforms, their commands and rules."""
