"""The process that makes one call and publishes its result."""
