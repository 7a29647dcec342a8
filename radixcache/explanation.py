"""Why a look-up matched as much as it did, as plain values and as one sentence for people."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

__all__ = ["Divergence", "EvictedPrefix", "Explanation", "MissCause", "NamespaceMatch"]


class MissCause(Enum):
    """Why a look-up ended where it did. Where several reasons hold, the first here is named."""

    HIT = "hit"  # every token matched
    ALIGNMENT = "alignment"  # every whole block matched; a tail shorter than a block never does
    EVICTED = "evicted"  # the next block was cached and had to go
    OTHER_NAMESPACE = "other_namespace"  # another one holds more; known only if looked for
    DIVERGED = "diverged"  # something was cached that begins alike and goes on differently
    NEVER_SEEN = "never_seen"  # nothing known goes on, or begins, like it


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictedPrefix:
    """What would have matched next, had it stayed."""

    num_tokens: int  # that would have matched, beyond those that did
    evicted_s: float  # seconds since the first of them went
    evicted_by: str  # the pressure: what ``evict(cause=...)`` was told, or the quota reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The cached branch that agrees longest, token by token, and where it parts."""

    at: int  # index of the first token that differs; blocks match only up to its block
    cached_token_ids: tuple[int, ...]  # how the branch goes on from there; at most 16
    asked_token_ids: tuple[int, ...]  # how the prompt does; at most 16
    node_id: int  # of the branch, as in TreeNodeView
    num_tokens: int  # of that node
    num_hits: int
    last_access_s: float  # seconds since its last hit
    scope: str  # PUBLIC or the asker's own


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceMatch:
    """What another namespace holds of the prompt."""

    namespace: str  # its kv_key
    scope: str
    matched_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How much of a prompt is cached for a namespace, and why not more.

    A look-up matches whole blocks of all tokens. A request matches whole blocks of all tokens but
    the last, because at least one must be fresh to compute from: ``reusable_tokens``.
    """

    prompt_tokens: int = 0
    matched_tokens: int = 0
    block_size: int = 1
    evicted: EvictedPrefix | None = None  # these stand here whatever the cause is
    diverged: Divergence | None = None
    elsewhere: tuple[NamespaceMatch, ...] = ()  # those that hold more, the longest first
    num_namespaces_looked_at: int = 0  # besides the asker's; 0 unless that was asked for
    all_namespaces_looked_at: bool = False
    all_branches_looked_at: bool = True  # False: so many part here that not all were compared
    forgotten_s: float | None = None  # evictions longer ago than this may be forgotten; None: none
    flushed_s: float | None = None  # since the last flush, with which everything was forgotten

    @property
    def cause(self) -> MissCause:
        """The first reason that holds, in the order of MissCause."""
        reasons = {
            MissCause.HIT: not self.missing_tokens,
            MissCause.ALIGNMENT: self.missing_tokens == self.tail_tokens,
            MissCause.EVICTED: self.evicted is not None,
            MissCause.OTHER_NAMESPACE: bool(self.elsewhere),
            MissCause.DIVERGED: self.diverged is not None,
        }
        return next((cause for cause, holds in reasons.items() if holds), MissCause.NEVER_SEEN)

    @property
    def missing_tokens(self) -> int:
        """Tokens that did not match."""
        return self.prompt_tokens - self.matched_tokens

    @property
    def tail_tokens(self) -> int:
        """Tokens at the end that fill no block, and so never match."""
        return self.prompt_tokens % self.block_size

    @property
    def reusable_tokens(self) -> int:
        """What a request for exactly this prompt reuses: at least one token is computed."""
        limit = max(0, self.prompt_tokens - 1) // self.block_size * self.block_size
        return min(self.matched_tokens, limit)

    @property
    def summary(self) -> str:
        """One sentence for people."""
        return _SENTENCES[self.cause](self)


def _matched(what: Explanation) -> str:
    return f"matched {what.matched_tokens:,} of {what.prompt_tokens:,} tokens; "


def _hit(what: Explanation) -> str:
    if not what.prompt_tokens:
        return "there are no tokens to match"
    again = what.prompt_tokens - what.reusable_tokens
    last = "the last token" if again == 1 else f"the last {again:,} tokens"
    return (
        f"matched all {what.prompt_tokens:,} tokens; a request still computes {last}, because "
        "it reuses whole blocks and at least one token must be fresh"
    )


def _alignment(what: Explanation) -> str:
    short = f"the last {what.tail_tokens:,} tokens do not fill a block"
    if what.tail_tokens == what.prompt_tokens:
        short = "the prompt is shorter than a block"
    elif what.tail_tokens == 1:
        short = "the last token does not fill a block"
    return f"{_matched(what)}{short} of {what.block_size:,}, and only whole blocks are cached"


def _evicted(what: Explanation) -> str:
    lost = what.evicted
    assert lost is not None, "the cause says so"
    ago, because = _ago(lost.evicted_s), lost.evicted_by
    if lost.num_tokens == what.missing_tokens:
        much = f"the rest was evicted {ago} ago because {because} ({_tokens(lost.num_tokens)})"
    else:
        part = f"{lost.num_tokens:,} of the {what.missing_tokens:,} missing tokens"
        much = f"what follows was evicted {ago} ago because {because} ({part})"
    return _matched(what) + much


def _other_namespace(what: Explanation) -> str:
    best = what.elsewhere[0]
    whose = f"scope {best.scope!r}" if best.scope else "the public scope"
    return (
        f"{_matched(what)}{whose} of namespace {best.namespace!r} holds "
        f"{best.matched_tokens:,}, which a look-up in this one does not see"
    )


def _diverged(what: Explanation) -> str:
    fork = what.diverged
    assert fork is not None, "the cause says so"
    aligned = ""
    if fork.at > what.matched_tokens:
        aligned = f" (only whole blocks of {what.block_size:,} match)"
    return (
        f"{_matched(what)}at token {fork.at:,}, counted from 0, the prompt goes on with "
        f"{_first(fork.asked_token_ids)} and the nearest cached branch with "
        f"{_first(fork.cached_token_ids)}{aligned}"
    )


def _never_seen(what: Explanation) -> str:
    that = "nothing that begins like it has"
    if what.matched_tokens:
        that = "the rest has not"
    elif not what.all_branches_looked_at:
        that = "its first block has not"
    since, forgotten, flushed = "", what.forgotten_s, what.flushed_s
    if flushed is not None and (forgotten is None or flushed <= forgotten):
        since = f" since the flush {_ago(flushed)} ago"
    elif forgotten is not None:
        since = f", unless it was evicted more than {_ago(forgotten)} ago"
    elsewhere = " (other namespaces were not looked at)"
    if what.all_namespaces_looked_at:
        elsewhere = ", nor in other namespaces"
    elif what.num_namespaces_looked_at:
        elsewhere = f", nor in the {what.num_namespaces_looked_at:,} other namespaces looked at"
    return f"{_matched(what)}{that} been cached{since}{elsewhere}"


_SENTENCES: Final[Mapping[MissCause, Callable[[Explanation], str]]] = MappingProxyType(
    {
        MissCause.HIT: _hit,
        MissCause.ALIGNMENT: _alignment,
        MissCause.EVICTED: _evicted,
        MissCause.OTHER_NAMESPACE: _other_namespace,
        MissCause.DIVERGED: _diverged,
        MissCause.NEVER_SEEN: _never_seen,
    }
)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _first(token_ids: tuple[int, ...]) -> str:
    shown = " ".join(map(str, token_ids[:3]))
    return f"{shown} …" if len(token_ids) > 3 else shown


def _ago(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
