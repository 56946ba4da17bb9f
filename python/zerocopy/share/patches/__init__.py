"""Functions of other libraries whose results are kept."""
