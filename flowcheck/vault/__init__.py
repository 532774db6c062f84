"""What is done with steps once they are applied: written in checkpoint formats, saved, served,
downloaded, audited."""
