"""What is refused by its size, before anything reads it item by item.

Counts of repeated fields cost nothing, so these checks may run on the event loop.
"""

from radixcache.errors import TooLongError
from radixcache.types import ModelInfo
from radixcache.v1 import engine_service_pb2, prompt_pb2, sampling_pb2
from radixcache_engine.front.limits import check_num_messages, check_num_tokens

__all__ = [
    "check_detokenize_size",
    "check_prompt_size",
    "check_sampling_size",
    "check_text_bytes",
    "check_tokenize_size",
]

_MAX_TEXT_BYTES = 8 << 20
_MAX_MESSAGES = 65_536
_MAX_IDS = 1 << 20


def check_prompt_size(prompt: prompt_pb2.Prompt, model: ModelInfo) -> None:
    """Refuse a prompt that has more ids or messages than a sequence has tokens.

    Raises:
        TooLongError: it can never fit.
    """
    kind = prompt.WhichOneof("kind")
    if kind == "token_ids":
        check_num_tokens(prompt.token_ids.ids, model)
    elif kind == "messages":
        check_num_messages(prompt.messages.messages, model)


def check_sampling_size(sampling: sampling_pb2.SamplingParams) -> None:
    """Refuse lists beyond all reason; their true ranges are the front's.

    Raises:
        TooLongError: too many entries.
    """
    for field, size in (
        ("logit_bias", len(sampling.logit_bias)),
        ("stop", len(sampling.stop)),
        ("stop_token_ids", len(sampling.stop_token_ids)),
    ):
        _check(field, size, _MAX_IDS, "entries")


def check_tokenize_size(request: engine_service_pb2.TokenizeRequest) -> None:
    """Refuse a conversation of too many messages.

    Raises:
        TooLongError: too many.
    """
    if request.WhichOneof("input") == "messages":
        _check("messages", len(request.messages.messages), _MAX_MESSAGES, "messages")


def check_text_bytes(field: str, num_bytes: int) -> None:
    """Refuse a text that would take a worker for long.

    Raises:
        TooLongError: too many bytes of UTF-8.
    """
    _check(field, num_bytes, _MAX_TEXT_BYTES, "bytes of text")


def check_detokenize_size(request: engine_service_pb2.DetokenizeRequest) -> None:
    """Refuse too many ids.

    Raises:
        TooLongError: too many.
    """
    _check("token_ids", len(request.token_ids), _MAX_IDS, "tokens")


def _check(field: str, size: int, limit: int, unit: str) -> None:
    if size > limit:
        raise TooLongError(field, f"{size:,} {unit}", f"at most {limit:,} {unit}")
