"""Elected masters in a deterministic simulation: no acknowledged record is lost, no two masters acknowledge at once."""
