"""What several mirror ports saw, merged into one view."""
