"""Consumer groups: members, subscriptions, queue locks, offsets."""
