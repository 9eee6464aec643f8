"""Raft as values in, values out. No clock, no randomness, no files, no sockets."""
