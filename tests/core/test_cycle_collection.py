"""The collector is as it was, also after an error."""

import gc

import pytest

from isojax.core.cycle_collection import cycle_collection_paused


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_as_it_was(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with cycle_collection_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled

        with pytest.raises(ValueError), cycle_collection_paused():
            raise ValueError
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
