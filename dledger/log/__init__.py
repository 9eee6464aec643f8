"""The Raft log in DLedger's file format, and the small files beside it."""
