"""Other trainers' logs: one file per format, or a fork's own module (`--from my_fork.my_format`), with `read(path) ->
list[LogTable]`, and `FIELDS`, which maps a field to the columns that the format is known to write it in."""
