"""From other trainers' logs to ledgers of our own.

An importer (runs/importers/) reads a log into a `LogTable`: rows with their places, and what the log says once for all
of them. `map_columns` decides which column is which field, by --map or by the names that the format is known to write;
`log_runs` groups rows into runs and numbers those without a seed, `log_evaluations` joins the rows of a step and makes
evaluations of the steps, and `import_logs` drives them and writes the folder of ledgers.
"""
