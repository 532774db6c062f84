"""What a reading may be believed: collectives with results, and doubts."""
