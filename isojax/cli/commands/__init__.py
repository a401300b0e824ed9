"""The commands, one per file: command_files.py finds them."""
