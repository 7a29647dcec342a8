"""Token ids to text, piece by piece, giving out only what later tokens cannot change."""

import codecs
from collections.abc import Collection, Sequence

from radixcache.types import FinishReason
from radixcache_engine.sampling.stop import StopMatcher, StopSet
from radixcache_engine.types import SequenceOutput

__all__ = ["Detokenizer"]


class Detokenizer:
    """The text of one sequence.

    ::

        bytes:  [ given out ][ pending: certain | held back ]
                                                 ^ may be the beginning of a stop string

    Args:
        token_bytes: text of every token id.
        stops: the request's stop strings.
        end_token_ids: tokens that end a sequence and are no part of its text.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], stops: StopSet, end_token_ids: Collection[int] = ()
    ) -> None:
        self._token_bytes = token_bytes
        self._matcher = StopMatcher(stops, token_bytes)
        self._end_token_ids = end_token_ids
        self._pending = bytearray()
        self._num_given_bytes = 0
        self._last_token_id: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, output: SequenceOutput) -> str:
        """Add what the engine reported; return the text that became certain.

        A character split over tokens comes out whole. In the last call, what was held back comes
        out too, up to the stop string; a character that the end cut off becomes one U+FFFD.
        """
        for token_id in output.token_ids:
            self._pending += self._text_of(token_id)
            self._matcher.feed(token_id)
            self._last_token_id = token_id
        if output.finish_reason is None:
            return self._give(len(self._pending) - self._matcher.num_held_bytes)
        return self._give(self._end(output)) + self._decoder.decode(b"", final=True)

    def _text_of(self, token_id: int) -> bytes:
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def _end(self, output: SequenceOutput) -> int:
        if output.num_text_bytes is not None:
            return output.num_text_bytes - self._num_given_bytes
        last = self._last_token_id
        if last is None or output.finish_reason is not FinishReason.STOP:
            return len(self._pending)
        by_token = last == output.stop_reason or last in self._end_token_ids
        return len(self._pending) - (len(self._text_of(last)) if by_token else 0)

    def _give(self, count: int) -> str:
        count = max(count, 0)
        text = self._decoder.decode(bytes(self._pending[:count]))
        del self._pending[:count]
        self._num_given_bytes += count
        return text
