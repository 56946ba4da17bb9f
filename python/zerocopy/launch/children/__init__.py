"""Lies on ``PYTHONPATH`` below ``zerocopy run``, so that each Python finds ``sitecustomize`` here."""
