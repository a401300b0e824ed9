"""From other trainers' logs to ledgers of our own. An importer (runs/importers/) reads a log into a
`LogTable`; `column_map` decides which column is which field, `import_logs` groups rows into runs,
numbers those without a seed and writes the ledgers, and `log_evaluations` makes evaluations of a
run's rows."""
