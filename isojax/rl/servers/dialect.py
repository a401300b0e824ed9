"""What is asked of a server and what it answers, whatever its project calls them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol


class LogpKind(Enum):
    """Of which distribution a server's log-probs are."""

    SAMPLED = "of the distribution that is sampled"  # after temperature and top-p, as isojax's own
    BEFORE_TOP_P = "after temperature, before top-p"
    NONE = "not there"


@dataclass(frozen=True)
class Ask:
    """n responses to one prompt."""

    prompt: Sequence[int]  # its tokens
    prompt_text: str  # the same as text, special tokens included
    n: int
    seed: int  # below 2^31
    temperature: float
    top_p: float
    max_tokens: int
    stop_tokens: Sequence[int]
    stop_strings: Sequence[str]
    with_logps: bool = False
    alternatives: int = 0  # tokens beside the sampled one, of which the log-probs are asked too


@dataclass(frozen=True)
class Completion:
    """A response as a server gives it."""

    text: str  # without what ended it
    stopped: bool  # an end token or a stop string ended it, not its length
    tokens: Sequence[int] | None = None  # with the end token; None where the server gives none
    logps: Sequence[float] | None = None  # of these tokens
    prompt_tokens: int | None = None  # as the server counts them
    # Log-probs of the likeliest first tokens, by the server's name of them, where they were asked.
    first_alternatives: Mapping[str, float] = field(default_factory=dict)


class Call(NamedTuple):
    path: str
    body: dict[str, Any]


class Dialect(Protocol):
    """How one project's server is asked. `read` raises KeyError, IndexError, TypeError or
    ValueError where an answer is not as the project's are."""

    name: ClassVar[str]
    max_n: ClassVar[int]  # the most responses that one request is asked for
    gives_tokens: ClassVar[bool]
    logp_kind: ClassVar[LogpKind]
    # Whether the nucleus is of the distribution before temperature, where isojax's is of the one
    # after it.
    cuts_before_temperature: ClassVar[bool] = False
    # what helps where tokens are missing, and where log-probs are of another kind
    token_fix: ClassVar[str] = ""
    logp_fix: ClassVar[str] = ""

    def write(self, model: str, ask: Ask) -> Call: ...

    def read(self, answer: Any) -> list[Completion]: ...
