"""Requests of administration tools, and the registration with nameservers."""
