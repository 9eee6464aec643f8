"""The message store on memory-mapped files. It knows bytes and files; neither sockets nor roles."""
