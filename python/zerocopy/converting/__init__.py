"""From one format to another, one tensor at a time."""
