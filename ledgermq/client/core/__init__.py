"""Shared by producers, consumers and admins: connections, routes, calls."""
