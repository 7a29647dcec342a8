"""When a sequence ends: end tokens, stop ids, stop strings, length."""

from radixcache.types import FinishReason, SamplingParams
from radixcache_engine.scheduler.sequence import Sequence
from radixcache_engine.types import SampledToken

__all__ = ["apply_token"]


def apply_token(sequence: Sequence, token: SampledToken, end_token_ids: frozenset[int]) -> None:
    """Append a drawn token and set the sequence's finish reason if it ends with it.

    The token that ends a sequence belongs to its output and to its usage; text after a stop
    string does not (``num_text_bytes`` says where the text ends).
    """
    params = sequence.request.request.sampling
    sequence.append(token.token_id)
    if token.logprob is not None:
        sequence.new_logprobs.append(token.logprob)
    hit = sequence.stop_matcher.feed(token.token_id)
    num_output = len(sequence.output_ids)
    if hit is not None and num_output >= params.min_tokens:
        sequence.finish_reason = FinishReason.STOP
        sequence.stop_reason = hit.stop
        sequence.num_text_bytes = hit.num_text_bytes
    elif _is_end(token.token_id, params, end_token_ids):
        sequence.finish_reason = FinishReason.STOP
        if token.token_id in params.stop_token_ids:
            sequence.stop_reason = token.token_id
    elif params.max_tokens is not None and num_output >= params.max_tokens:
        sequence.finish_reason = FinishReason.LENGTH


def _is_end(token_id: int, params: SamplingParams, end_token_ids: frozenset[int]) -> bool:
    # min_tokens needs no look here: the processors mask these ids until it is reached.
    if token_id in params.stop_token_ids:
        return True
    return not params.ignore_eos and token_id in end_token_ids
