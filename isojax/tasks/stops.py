"""What ends a response: end tokens, and strings that may lie across several tokens or inside one."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stops:
    """A response ends with a token of `tokens`, or with the token that completes a stop string.

    Attributes:
        tokens: ids that end a response.
        table: uint8 or uint16 [states V], or None where there are no stop strings. `table[state, token]` is the state after that
            token; a response starts in state 0, and the value `states` (= len(table)) says that a stop string is complete.
    """

    tokens: tuple[int, ...]
    table: np.ndarray | None
