"""The mark of tests that compile for TPUs: libtpu does, on a machine without one, where its package
exists."""

from importlib.util import find_spec

import pytest

needs_libtpu = pytest.mark.skipif(
    find_spec("libtpu") is None,
    reason="no libtpu, which exists for Linux on x86 alone: pip install 'isojax[tpu]'",
)
