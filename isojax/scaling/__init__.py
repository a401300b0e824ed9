"""From recorded runs to a prescription: curves, frontier, n*(C) and the allocation for a new
budget."""
