"""The state of a running chain, and how it is shown: HTTP, metrics, terminal and page."""
