"""What the processes of one run send each other: JSON of a type that both sides name.

Nothing that arrives is unpickled: a pickle can run code, and what arrives may come from anybody who
reaches the port of the coordination service.
"""

import base64
import io
from functools import cache
from typing import Annotated, Any

import numpy as np
from pydantic import PlainSerializer, PlainValidator, TypeAdapter


def _array_to_text(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _array_from_text(text: Any) -> np.ndarray:
    return np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)


# An array in a message, of any dtype but object: base64 of what np.save writes. As a field it
# stands in a dataclass: pydantic would not find it in a NamedTuple.
SentArray = Annotated[
    np.ndarray, PlainValidator(_array_from_text), PlainSerializer(_array_to_text, return_type=str)
]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode(value: Any, kind: Any) -> bytes:
    """JSON of a value of the type `kind`, such as `int | None` or `dict[str, str]`.

    Of a pydantic model, such as a config, only the fields that were set are in it: the receiver has
    the defaults of the others, and does not take them for set.
    """
    return _adapter(kind).dump_json(value, exclude_unset=True)


def decode(message: bytes, kind: Any) -> Any:
    """The value that `encode` wrote with the same `kind`; pydantic's ValidationError for anything
    else."""
    return _adapter(kind).validate_json(message)
