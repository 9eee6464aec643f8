"""Telemetry of a process: metrics in Prometheus text, health over HTTP, lag of the event loop, garbage collection."""
