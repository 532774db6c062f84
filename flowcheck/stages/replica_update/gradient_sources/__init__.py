"""Where finished gradients come from (README.md)."""
