"""Mapped files of fixed length, and what allocates, maps, writes and deletes them."""
