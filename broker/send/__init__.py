"""Sends: from a request to records in the log, and the answers."""
