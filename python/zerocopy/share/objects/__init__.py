"""A result as bytes: its structure, its storages, and both together again in a client."""
