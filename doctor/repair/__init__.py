"""`repair`: makes a log readable again and rebuilds everything that is derived from it."""
