"""Lists the files, tensors, plain values and faults of a checkpoint, of every format and without torch."""
