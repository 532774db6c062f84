"""`flowcheck audit --watch`: compares each checkpoint that appears in a folder."""
