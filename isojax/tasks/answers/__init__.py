"""What an answer in a text says: finding it (final_answer, boxes, sentence), reading it (spelling,
whole_answer, expression, tree, units) and comparing two of them (arithmetic, equality,
computer_algebra).

The `math` verifier puts these together.
"""
