"""What a client talks to: request processors, long polling, topics, groups, offsets, and the broker's assembly."""
