"""How a row is measured: its kinds, the timing, processes of their own, the table and the picture."""
