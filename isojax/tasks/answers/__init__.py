"""What an answer in a text says: finding it (final_answer, sentence), reading it (spelling,
expression, tree, units) and comparing two of them (arithmetic, equality, computer_algebra). The
`math` verifier puts these together."""
