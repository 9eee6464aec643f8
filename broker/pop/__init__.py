"""POP: consumers take messages without owning queues; what is not acknowledged in time comes again."""
