"""Membership of a consumer group: which queues are ours, and how far the group has come."""
