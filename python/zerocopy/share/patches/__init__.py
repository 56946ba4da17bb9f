"""Functions of other libraries that go through the server."""
