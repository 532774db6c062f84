"""Every checkpoint format that is written and read: the table of them, and one module each."""
