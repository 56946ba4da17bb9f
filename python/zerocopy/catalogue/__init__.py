"""What is in a checkpoint, for every format and without torch: its files, tensors, plain values, and its faults."""
