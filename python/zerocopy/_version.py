"""The release of zerocopy."""

__version__ = "0.1.0"
