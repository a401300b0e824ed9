"""Running a sweep: `planner` turns a grid into cells, `local` runs them on this machine's devices."""
