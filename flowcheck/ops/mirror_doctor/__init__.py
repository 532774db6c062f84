"""`flowcheck doctor --live`: what a mirror port brings, and what to change for it."""
