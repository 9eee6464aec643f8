"""A broker whose master is elected by controllers: its id, its part in replication, and the controllers' answers."""
