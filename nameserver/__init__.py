"""The nameserver: keeps the routes of topics and follows elections of brokers."""
