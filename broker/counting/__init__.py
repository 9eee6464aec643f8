"""What a broker counts while it serves; `broker.metrics` shows it."""
