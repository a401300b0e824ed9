"""The figures that one command draws, each in its file; those of a sweep's report are plug-ins
(report/figures/)."""
