"""A chain in the foreground: started, watched, taken down."""
