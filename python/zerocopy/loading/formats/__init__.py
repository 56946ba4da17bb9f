"""Formats that Python reads: which bytes of which file are which tensor."""
