"""From a document to Python objects: which globals are allowed, and how tensors are built."""
