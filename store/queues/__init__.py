"""Consume queues: for each topic and queue id, where each message lies in the log."""
