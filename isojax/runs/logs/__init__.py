"""From other trainers' logs to ledgers (`isojax records import`), in this order:

find_logs         which files are logs, and of which format
(runs/importers)  an importer reads a log into a `LogTable` (log_table)
column_detection  which column is which field: a `ColumnMap` (column_map)
run_rows          which rows are which run: `LogRun`s (log_run); resumed_runs joins those that go on
log_evaluations   one run's rows as its evaluations, by step (run_steps, step_totals)
run_records       a seed for each run, and no run twice
import_logs       all of this, and the folder of ledgers

A field is what isojax needs of a row, such as reward, step, n or B_p (log_table.FIELD_HELP); a
column is what the log calls it. The user maps fields to columns by --map FIELD=COLUMN. What several
formats share is in verl_columns, trl_columns and known_columns.
"""
