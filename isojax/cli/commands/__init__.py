"""The commands, one a file; app.py lists them."""
