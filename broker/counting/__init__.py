"""What a broker counts while it serves; `broker.metrics` shows it, `broker.admin` tells it to tools."""
