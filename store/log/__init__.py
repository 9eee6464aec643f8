"""RocketMQ's classic commit log on mapped files: placing, flushing, recovery."""
