"""Pulls: reading queues for consumers, filters, and held pulls."""
