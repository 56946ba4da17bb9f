"""Between a client and the server: sockets, frames, sealed memory, identities of files."""
