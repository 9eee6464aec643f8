"""Shared by servers: authority over changes, settings that change at run time, notices, answers, the serving line."""
