"""What a server needs of the front: the part of its surface that servers call, as protocols."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from radixcache.errors import RadixCacheError
from radixcache.types import Answer, ChatMessage, Delta, MatchResult, TreeView, Usage
from radixcache_engine.types import GenerateRequest

__all__ = ["FrontAPI", "StreamAPI", "UpdateAPI"]


class UpdateAPI(Protocol):
    """What a stream has produced since the last poll; the last one has an answer or an error."""

    @property
    def deltas(self) -> Sequence[Delta]:
        """New tokens and text, oldest first."""
        ...

    @property
    def answer(self) -> Answer | None:
        """The whole answer, once the request has finished."""
        ...

    @property
    def error(self) -> RadixCacheError | None:
        """Why the request failed, once it has."""
        ...

    @property
    def usage(self) -> Usage | None:
        """What the request cost, with the answer or the error."""
        ...


class StreamAPI(Protocol):
    """One open request."""

    @property
    def request_id(self) -> str:
        """The id that is echoed to the client."""
        ...

    def poll(self) -> UpdateAPI:
        """Take what is new, without waiting."""
        ...

    def abort(self) -> None:
        """Ask for the request's end. Idempotent, and nothing after the end."""
        ...


class FrontAPI(Protocol):
    """Text and chat in, text out. Every method may be called from any thread."""

    def open(self, request: GenerateRequest, notify: Callable[[], None]) -> StreamAPI:
        """Validate, tokenise and submit a request.

        Args:
            request: as the user gave it.
            notify: called by the step thread when there is something to poll.

        Raises:
            RadixCacheError: the request is refused.
        """
        ...

    def abort(self, request_id: str) -> int:
        """End every open request of that client id; return how many there were."""
        ...

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ...

    def chat_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the token ids of a conversation, as the model's template writes it."""
        ...

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        ...

    def match(self, request: GenerateRequest) -> "Future[MatchResult]":
        """Look the prompt of a request up in the cache."""
        ...

    def tree(self, max_nodes: int) -> "Future[TreeView]":
        """Return a bounded picture of the tree, with its tokens decoded."""
        ...
