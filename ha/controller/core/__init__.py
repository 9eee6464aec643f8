"""The controllers' rules without I/O: groups, commands, elections, who is alive, how state becomes bytes."""
