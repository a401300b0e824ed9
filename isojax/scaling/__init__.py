"""From recorded runs to a prescription: curves, frontier, n*(C) and the allocation for a new budget. NumPy and SciPy
only.

fit.fit(runs) gives the content of fit.json; recommend.recommend(fit, C) needs that dictionary alone.
"""
