"""The search for the fewest ports to mirror."""
