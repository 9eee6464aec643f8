"""The Raft log in DLedger's file format, and the small state files of a node."""
