"""What an answer in a text says: finding it (final_answer, sentence), reading it (spelling, expression, units), and
comparing two of them (arithmetic, equality). The `math` verifier puts these together."""
