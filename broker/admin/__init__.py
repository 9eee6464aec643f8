"""Requests of tools and the messages to nameservers."""
