"""What a capture holds, read and told."""
