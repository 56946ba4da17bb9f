"""The page cache, and file systems of the benchmarks' own: a slow one, and some on loop devices."""
