"""Tasks: problems, how they are written as tokens, and how responses are verified."""
