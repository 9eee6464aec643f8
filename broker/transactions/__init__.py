"""Transactional messages: half messages, the decisions about them, and questions to producers."""
