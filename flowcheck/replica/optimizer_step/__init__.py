"""One optimizer step over the flat state: by our C kernel where the rule fits, else by torch."""
