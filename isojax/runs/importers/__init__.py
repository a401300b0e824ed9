"""Other trainers' logs, one file a format: `read(path, tick) -> list[Table]` and `FIELDS`, the columns it is known to
write.

A fork adds a format by adding a file here, or passes the path of a module of its own (`--from my_fork.my_format`). What
every format shares is in runs/log_table.py (rows and their places), runs/log_fields.py (which column is what),
runs/log_values.py (cells as numbers), runs/log_runs.py and runs/log_evaluations.py (rows -> RunRecords) and
runs/import_logs.py (the ledgers).
"""
