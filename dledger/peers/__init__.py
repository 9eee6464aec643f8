"""Connections between the members of a Raft group, and the frames that are sent on them."""
