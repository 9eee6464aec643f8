"""What the servers of requests share: who may ask for changes, and settings that change while a process runs."""
