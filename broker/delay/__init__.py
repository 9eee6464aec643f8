"""Messages that wait for a time: delay levels and timers."""
