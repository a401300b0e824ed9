"""What each kernel is compared with float32 by: before a run, and by `isojax accelerator`.

Random inputs alone would hide the mistakes that kernels make. Of 4,096 keys, one too many or too
few changes an output by 2%, and a block that is read late may hold zeros. So inputs are such that a
mistake at one position changes an output as a whole:

- positions around the borders of blocks (every 128) have values of BORDER_SCALE times the usual
  size;
- positions that no query may see have values of UNSEEN_SCALE times the usual size;
- rows end at, before and after borders of blocks; slots cross them while they decode, and one slot
  starts again with a shorter text over what it held before.
"""
