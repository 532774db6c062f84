"""`flowcheck fleet`: plans on paper for several checkpoint nodes."""
