"""Steps given back, checked and held against the trainer's own."""
