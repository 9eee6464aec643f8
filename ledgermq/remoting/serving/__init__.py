"""Shared by the servers of requests: authority over changes, settings that change at run time, notices, answers."""
