"""The keywords of the clients' calls, once for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from radixcache.types import CacheMode, ChatMessage

__all__ = [
    "CacheOption",
    "GenerateOptions",
    "Messages",
    "PromptOptions",
    "SamplingOptions",
    "check",
]

CacheOption: TypeAlias = CacheMode | Literal["off", "read", "write"]
Messages: TypeAlias = Sequence[ChatMessage | Mapping[str, str]]


class SamplingOptions(TypedDict, total=False):
    """How to continue a prompt. Left out or None: the server's default, named here.

    Ranges are checked by the server, which refuses with the field, the value and the range.
    """

    model: str  # the one that is loaded
    max_tokens: int | None  # what context and pool allow, at most 1,024
    min_tokens: int | None  # 0
    temperature: float | None  # 1; below 1e-5 the likeliest token is taken
    top_k: int | None  # -1: all
    top_p: float | None  # 1
    min_p: float | None  # 0
    seed: int | None  # drawn anew for each request
    repetition_penalty: float | None  # 1
    presence_penalty: float | None  # 0
    frequency_penalty: float | None  # 0
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None  # False
    logprobs: int | None  # none; k: of each token and of the k likeliest
    n: int | None  # 1
    cache: CacheOption  # "write": read the prefix cache and publish to it
    request_id: str  # echoed in the answer, and usable in abort()
    timeout: float | None  # seconds for the whole call; the client's own time-out


class GenerateOptions(SamplingOptions, total=False):
    """A prompt in another form than text, and how to continue it."""

    token_ids: Sequence[int] | None
    messages: Messages | None


class PromptOptions(TypedDict, total=False):
    """A prompt in another form than text."""

    model: str
    token_ids: Sequence[int] | None
    messages: Messages | None


def check(call: str, given: Mapping[str, Any], known: type) -> None:
    """Refuse a keyword that the call does not have, as a plain function would.

    Raises:
        TypeError: naming the call, the keyword and the known ones.
    """
    names = known.__annotations__
    for name in given:
        if name not in names:
            raise TypeError(
                f"{call}() got an unexpected keyword argument {name!r}; "
                f"known: {', '.join(sorted(names))}"
            )
