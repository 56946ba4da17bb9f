"""The files that are measured, and the objects that are loaded from them."""
