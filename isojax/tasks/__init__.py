"""Problems, how they are written as tokens, and how answers are verified: one file a task."""
