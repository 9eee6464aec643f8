"""The asyncio client: `Producer`, `Consumer` and their typed errors."""
