"""Replication between a master and its slaves without I/O: bytes, offsets and times come in, decisions go out."""
