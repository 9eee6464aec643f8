"""The Raft-replicated commit log: sans-I/O core, its log on the store's mapped files, driver, transport."""
