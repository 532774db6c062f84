"""What a DDP trainer has told of itself, and what it will send next."""
