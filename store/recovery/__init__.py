"""Recovery of the queues after a stop, and the checkpoint that shortens it."""
