"""Running a sweep: from the grid to cells (planner), on this machine (local/) or on a Ray cluster
(ray/)."""
