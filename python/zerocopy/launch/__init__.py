"""Starts programs: in this process, or forked from a process that has their imports already."""
