"""Transactional messages: half messages, decisions about them, and checks of undecided ones with their producers."""
