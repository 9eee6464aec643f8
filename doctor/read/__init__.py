"""Reading store directories without changing them."""
