"""POP: consumers take messages without owning queues; a message that is not acknowledged in time is delivered again."""
