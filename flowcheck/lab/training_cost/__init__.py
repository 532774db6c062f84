"""What checkpoints cost the trainers."""
