"""Responses of several turns: the policy's own tokens, and context, which it did not draw."""

from typing import TypeVar

TokenArray = TypeVar("TokenArray")


def plain_tokens(tokens: TokenArray) -> TokenArray:
    """Token ids i32[...], where context is written as ~token, which is negative."""
    return tokens ^ (tokens >> 31)  # type: ignore[operator]
