"""Why a look-up ended where it did: a walk over what is cached and what is remembered as lost.

Evicted pieces hang from cached nodes (and from each other) as children do, so both together are
one tree of all that has been here lately. A scope sees a few paths through it: the PUBLIC one, and
each private branch that leaves it. Each path is cached at first, then lost.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from radixcache.explanation import Divergence, EvictedPrefix, Explanation, NamespaceMatch
from radixcache.tree.forest import Forest
from radixcache.tree.keys import ID_BYTES, common_len, edge_tag
from radixcache.tree.lost import Lost
from radixcache.tree.node import Node, Root, longest
from radixcache.types import PUBLIC, Namespace

__all__ = ["explain_look_up"]

_MAX_BRANCHES = 1_000
"""Children compared at one fork, the newest first. A root may have a million."""

_MAX_PASSED = 100_000
"""Children passed at one fork in search of visible ones."""

_MAX_NAMESPACES = 64
"""Other namespaces looked at; each costs what a match does."""

_SHOWN_TOKENS = 16


class _Span(NamedTuple):
    """A stretch of a path: bytes ``start`` to ``stop`` from the root that the tokens agree with."""

    owner: int | str  # see lost.owner_id
    node: Node | None  # where it is cached
    lost: Lost | None  # where it was evicted; neither: a root that is gone
    start: int
    stop: int


@dataclass(slots=True)
class _Path:
    """One way down; a private one begins where it leaves the PUBLIC one."""

    start: int
    spans: list[_Span]

    @property
    def stop(self) -> int:
        """Bytes from the root to its end."""
        return self.spans[-1].stop

    @property
    def end(self) -> _Span | None:
        """Its last cached span."""
        return next((span for span in reversed(self.spans) if span.node is not None), None)

    def lost_at(self, depth: int) -> Lost | None:
        """The piece that it lost at ``depth``."""
        return next((s.lost for s in self.spans if s.start <= depth < s.stop), None)


def explain_look_up(
    forest: Forest, space: Namespace, view: memoryview, *, look_elsewhere: bool
) -> Explanation:
    """Explain a look-up of all whole blocks of ``view`` (packed key ids). Pure.

    Cost: that of a match, the evicted pieces that the tokens go on with, at most 1,000 branches at
    each fork where a visible path ends, and, if asked for, 64 more matches.
    """
    blocks = view[: len(view) - len(view) % forest.unit]
    paths = _visible_paths(forest, space, blocks)
    ends = [end for path in paths if (end := path.end) is not None]
    depth = max((end.stop for end in ends), default=0)
    now, forgotten, flushed = forest.clock(), forest.lost.forgotten_s, forest.lost.flushed_s(space)
    found = Explanation(
        prompt_tokens=len(view) // ID_BYTES,
        matched_tokens=depth // ID_BYTES,
        block_size=forest.block_size,
        forgotten_s=None if forgotten is None else max(0.0, now - forgotten),
        flushed_s=None if flushed is None else max(0.0, now - flushed),
    )
    if depth < len(blocks):
        seen = [_branches(end, depth, space) for end in ends if end.stop == depth]
        branches = [node for nodes in seen for node in nodes]
        found = replace(
            found,
            evicted=_evicted(paths, depth, now),
            diverged=_diverged(forest, branches, view, depth, now),
            all_branches_looked_at=all(len(nodes) <= _MAX_BRANCHES for nodes in seen),
        )
    return _look_elsewhere(forest, space, blocks, found) if look_elsewhere else found


# -- the paths that a scope sees ---------------------------------------------------------------


def _visible_paths(forest: Forest, space: Namespace, view: memoryview) -> list[_Path]:
    """Return the PUBLIC path, then the private ones."""
    top = _Span(space.kv_key, forest.roots.get(space.kv_key), None, 0, 0)
    public = _Path(0, [top, *_follow(forest, top, 0, b"", view)])
    if space.scope == PUBLIC:
        return [public]
    tag = edge_tag(space.scope)
    paths = [public]
    for span in public.spans:
        for depth in _forks(forest, span):
            spans = _follow(forest, span, depth, tag, view)
            if spans:
                paths.append(_Path(depth, spans))
    return paths


def _forks(forest: Forest, span: _Span) -> Iterable[int]:
    """Return where in a span something else may hang, cached or lost."""
    low = span.start if span.stop else -forest.unit  # a root's only place is at 0
    lost = forest.lost.places(span.owner, low, span.stop)
    node = span.node
    if node is None or node.children is None or span.stop < node.start + len(node.key):
        return lost
    return {*lost, span.stop}


def _follow(forest: Forest, above: _Span, pos: int, tag: bytes, view: memoryview) -> list[_Span]:
    """Follow the children of one scope from ``pos`` in a span on, then what was lost below."""
    spans: list[_Span] = []
    unit, span, node = forest.unit, above, above.node
    while node is not None and node.children is not None and pos == node.start + len(node.key):
        node = node.children.get(tag + view[pos : pos + unit])
        if node is None:
            break
        stop = pos + len(node.key)
        if node.key != view[pos:stop]:
            stop = pos + common_len(node.key, view[pos:], unit)
        span = _Span(node.node_id, node, None, pos, stop)
        spans.append(span)
        pos = stop
    for lost, start, stop in forest.lost.find_run(span.owner, pos, tag, view[pos:]):
        spans.append(_Span(lost.node_id, None, lost, start, stop))
    return spans


# -- the reasons -------------------------------------------------------------------------------


def _evicted(paths: list[_Path], depth: int, now: float) -> EvictedPrefix | None:
    """Return what was lost at ``depth``; of several paths the one that lost it last."""
    public = paths[0].lost_at(depth)
    found: list[tuple[float, int, str]] = []
    for path in paths:
        # One that leaves the PUBLIC path further down shares its loss.
        lost = path.lost_at(depth) if path.start <= depth else public
        if lost is not None:
            found.append((lost.eviction.time_s, path.stop, lost.eviction.cause))
    if not found:
        return None
    time_s, stop, cause = max(found)
    return EvictedPrefix(
        num_tokens=(stop - depth) // ID_BYTES,
        evicted_s=max(0.0, now - time_s),
        evicted_by=cause,
    )


def _branches(end: _Span, depth: int, space: Namespace) -> list[Node]:
    """Return what a namespace sees from ``depth`` on, one more than the limit if it is too much."""
    node = end.node
    assert node is not None, "an end is cached"
    if depth < node.start + len(node.key):
        return [node]
    # Only what is seen counts, or others' branches would hide one's own and show in the answer.
    # The newest first: they tell more, and what eviction leaves of a dictionary's front is slow.
    newest = islice(reversed((node.children or {}).values()), _MAX_PASSED)
    visible = (child for child in newest if child.scope in (PUBLIC, space.scope))
    return list(islice(visible, _MAX_BRANCHES + 1))


def _diverged(
    forest: Forest, branches: list[Node], view: memoryview, depth: int, now: float
) -> Divergence | None:
    """Return the branch that agrees longest, of these the most used."""
    block = view[depth : depth + forest.unit]
    best: tuple[int, int, int] = (0, -1, 0)
    nearest: Node | None = None
    for node in branches:
        offset, agreed = depth - node.start, best[0]
        if not node.key.startswith(block[:agreed], offset):
            continue
        if node.key.startswith(block[agreed : agreed + ID_BYTES], offset + agreed):
            agreed = common_len(node.key[offset : offset + forest.unit], block, ID_BYTES)
        rank = (agreed, node.num_hits, node.last_access)
        if rank > best:
            best, nearest = rank, node
    at = depth + best[0]
    if nearest is None or not at:  # what shares not even the first token is no branch of it
        return None
    size, offset = _SHOWN_TOKENS * ID_BYTES, at - nearest.start
    return Divergence(
        at=at // ID_BYTES,
        cached_token_ids=tuple(memoryview(nearest.key[offset : offset + size]).cast("i")),
        asked_token_ids=tuple(view[at : at + size].cast("i")),
        node_id=nearest.node_id,
        num_tokens=len(nearest.key) // ID_BYTES,
        num_hits=nearest.num_hits,
        last_access_s=max(0.0, now - nearest.last_access_s),
        scope=nearest.scope,
    )


# -- other namespaces --------------------------------------------------------------------------


def _look_elsewhere(
    forest: Forest, space: Namespace, view: memoryview, found: Explanation
) -> Explanation:
    others = list(islice(_other_namespaces(forest, space), _MAX_NAMESPACES + 1))
    matches: list[NamespaceMatch] = []
    public: dict[Root, int] = {}
    for root, scope in others[:_MAX_NAMESPACES]:
        size = longest(root, view, scope, forest.unit)[2] // ID_BYTES
        if scope == PUBLIC:
            public[root] = size
        # A scope that sees no more than everybody else is no news.
        if size > found.matched_tokens and (scope == PUBLIC or size > public.get(root, 0)):
            matches.append(NamespaceMatch(namespace=root.kv_key, scope=scope, matched_tokens=size))
    return replace(
        found,
        elsewhere=tuple(sorted(matches, key=lambda match: -match.matched_tokens)),
        num_namespaces_looked_at=min(len(others), _MAX_NAMESPACES),
        all_namespaces_looked_at=len(others) <= _MAX_NAMESPACES,
    )


def _other_namespaces(forest: Forest, space: Namespace) -> Iterator[tuple[Root, str]]:
    """Yield what a look-up does not see, beginning with other scopes of the same ``kv_key``."""
    own = forest.roots.get(space.kv_key)
    if own is not None:
        scopes = islice(own.accounts, _MAX_NAMESPACES + 2)
        yield from [(own, scope) for scope in scopes if scope != space.scope]
    for root in islice(forest.roots.values(), _MAX_NAMESPACES + 2):
        if root is not own:
            yield root, PUBLIC
            yield from [(root, scope) for scope in islice(root.accounts, _MAX_NAMESPACES + 1)]
