"""Messages that wait in staging files until their place is known."""
