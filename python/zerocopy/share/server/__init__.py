"""The process that keeps results, and starts workers."""
