"""What a broker counts while it serves; `broker.metrics` and `broker.admin` show it."""
