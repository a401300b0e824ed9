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
    # of how many other first tokens, the likeliest ones, the log-probs are asked too
    alternatives: int = 0


@dataclass(frozen=True)
class Completion:
    """A response as a server gives it."""

    text: str  # without what ended it
    stopped: bool  # an end token or a stop string ended it, not its length
    tokens: Sequence[int] | None = None  # with the end token; None where the server gives none
    logps: Sequence[float] | None = None  # of these tokens
    prompt_tokens: int | None = None  # as the server counts them
    # Log-probs of the likeliest first tokens, where they were asked: by their ids, or the server's
    # names of them.
    first_alternatives: Mapping[int | str, float] = field(default_factory=dict)
    # of the weights, as they were announced; None where the server does not say
    version: str | None = None


class Call(NamedTuple):
    """A POST request."""

    path: str
    body: dict[str, Any]


# Requests by their paths, in their order. In texts {path} stands for a folder of weights, {version}
# for their update.
UpdateRequests = Mapping[str, Mapping[str, Any]]


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
    # that make the server load other weights; none where it has none
    update_requests: ClassVar[UpdateRequests] = {}
    update_fix: ClassVar[str] = ""  # what helps where it refuses them

    def write(self, model: str, ask: Ask) -> Call:
        """The request for these responses. model: the name that the server serves it by."""
        ...

    def read(self, answer: Any) -> list[Completion]:
        """The responses in an answer, which is parsed JSON."""
        ...
