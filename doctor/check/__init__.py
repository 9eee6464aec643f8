"""`check`: compares every file of a store with what it must contain."""
