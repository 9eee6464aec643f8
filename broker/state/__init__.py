"""The replicated tables: topics, groups, offsets; in the log, in memory and on disk."""
