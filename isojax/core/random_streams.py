"""A run's PRNG key is folded with one of these: draws for one use never depend on how many another use makes."""

TRAIN_STREAM = 0
EVAL_STREAM = 1
LABEL_STREAM = 2
EXTRA_STREAM = 3  # the i-th extra evaluation set uses EXTRA_STREAM + i
