"""The folder of kept results."""
