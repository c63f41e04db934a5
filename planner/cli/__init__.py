"""The command line: thin commands over documented Python calls."""
