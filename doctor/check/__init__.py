"""`check`: every file of a store against what it must hold."""
