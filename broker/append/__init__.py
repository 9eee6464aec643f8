"""Writing to the log: targets, drafts, the batch of a turn of the event loop, its answers, state records."""
