"""Fits have as few draws as need no warning: the tests of whole commands do not look at their
intervals, which tests/scaling does. To be imported before whatever takes the number."""

from isojax.scaling import intervals

intervals.REPLICATES = 100
