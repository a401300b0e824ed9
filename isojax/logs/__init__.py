"""Other trainers' logs, one file a format: `read(path, tick) -> list[Table]` and `FIELDS`, the columns it is known to write.

A fork adds a format by adding a file here, or passes the path of a module of its own (`--from my_fork.my_format`). What every format
shares is in table.py (rows and their places), fields.py (which column is what), values.py (cells as numbers), runs.py and points.py
(rows -> RunRecords) and importing.py (the ledgers).
"""
