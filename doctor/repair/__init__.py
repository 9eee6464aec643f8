"""`repair`: logs made readable again, and what follows from them made anew."""
