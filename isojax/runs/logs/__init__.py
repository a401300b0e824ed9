"""From other trainers' logs to ledgers of our own. An importer (runs/importers/) reads a log into a `LogTable`;
`map_columns` decides which column is which field; `log_runs` groups rows into runs and numbers those without a seed,
`log_evaluations` makes evaluations of a run's rows, and `import_logs` drives them and writes the ledgers."""
