"""What operators use: analyze, doctor, status."""
