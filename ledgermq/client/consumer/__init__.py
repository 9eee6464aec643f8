"""Reading, handling and acknowledging."""
