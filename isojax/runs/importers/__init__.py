"""Other trainers' logs, one file per format: `read(path) -> list[LogTable]`, and `FIELDS`, which maps a field to
the columns that the format is known to write it in.

A fork adds a format by adding a file here, or passes the path of a module of its own (`--from my_fork.my_format`). What
every format shares is in runs/logs/.
"""
