"""What a chain's state is made of, by subject."""
