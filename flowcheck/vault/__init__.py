"""What is done with steps once they are taken: given back to the trainer, held against its own."""
