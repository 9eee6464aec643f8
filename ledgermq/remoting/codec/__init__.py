"""Bytes to commands and back: frames, headers, JSON bodies."""
