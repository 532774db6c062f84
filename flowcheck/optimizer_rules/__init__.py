"""What is known of each optimizer of torch: one row a class. No torch here."""
