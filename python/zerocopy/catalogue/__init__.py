"""Lists the content of a checkpoint, of every format and without torch: its files, tensors, plain values, and its faults."""
