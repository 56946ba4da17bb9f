"""State of the whole process: locks that survive a fork, import hooks, replaced functions, counts, the heap."""
