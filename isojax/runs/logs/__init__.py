"""From other trainers' logs to ledgers of our own.

An importer (runs/importers/) reads a log into a `LogTable`: rows with their places, and what the log says once for all
of them. `column_map` decides which column is which field, by --map or by the names that the format is known to write;
`log_runs` groups rows into runs, `log_seeds` numbers those without a seed, `log_steps` joins the rows of one step,
`log_evaluations` makes evaluations of the steps, and `import_logs` drives them and writes the folder of ledgers.
"""
