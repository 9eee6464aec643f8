"""What a process says of itself: a metric registry in Prometheus text, health over HTTP, the event loop's lag."""
