"""The facts that a result depends on, and whether they still hold."""
