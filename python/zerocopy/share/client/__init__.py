"""The calling process: its calls, its connection, its results."""
