"""The small files of a store directory: who holds it, how its last owner stopped, up to where it is durable."""
