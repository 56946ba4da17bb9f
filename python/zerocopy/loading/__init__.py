"""Reading checkpoints: from a file, or bytes, to the object that was saved."""
