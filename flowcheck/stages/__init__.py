"""The services and the one loop that runs them."""
