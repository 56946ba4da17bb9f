"""Writing checkpoints: whole, tensor by tensor, or by editing a file."""
