"""A training job in the lab, end to end: launched, followed, killed, given back, resumed."""
