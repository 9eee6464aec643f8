"""Connections between the members of a Raft group, and the frames on them."""
