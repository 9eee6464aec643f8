"""The nameserver: routes that follow elections."""
