"""Faults in keys.py, node.py and match.py: comparing, walking, gathering."""

from functools import partial

from tests.faults.fault import Fault

_keys = partial(Fault, path="radixcache/tree/keys.py")
_node = partial(Fault, path="radixcache/tree/node.py")
_match = partial(Fault, path="radixcache/tree/match.py")

FAULTS = (
    _keys(
        name="common-len-jumps",
        old="view[low * unit : middle * unit], low * unit)",
        new="view[(middle - 1) * unit : middle * unit], (middle - 1) * unit)",
        breaks="a difference before the block looked at is jumped over",
    ),
    _keys(
        name="scopes-share-tags",
        old='scope.encode("utf-8", "surrogatepass")',
        new='scope.encode("utf-8", "replace")',
        breaks="two scopes with odd characters share their private paths",
    ),
    _keys(
        name="negative-block-ids",
        old="if ordered[0] < 0:",
        new="if ordered[-1] < 0:",
        breaks="one negative block id among good ones is taken over",
    ),
    _keys(
        name="equal-neighbours-are-rising",
        old="np.count_nonzero(ids[1:] > ids[:-1])",
        new="np.count_nonzero(ids[1:] >= ids[:-1])",
        breaks="a block id named twice in a row is taken over",
    ),
    _keys(
        name="repeats-unsorted",
        old="ordered = np.sort(ids)",
        new="ordered = ids",
        breaks="a block id named twice with others between is taken over",
    ),
    _keys(
        name="any-four-bytes-are-ids",
        old='view.format == "i" and view.c_contiguous',
        new="view.itemsize == ID_BYTES and view.c_contiguous",
        breaks="floats and unsigned numbers are read as if they were int32",
    ),
    _keys(
        name="minus-one-is-a-count",
        old="if count < 0:",
        new="if count < -1:",
        breaks="a count of -1 is let through",
    ),
    _keys(
        name="too-few-block-ids",
        old="if len(packed) < size:",
        new="if len(packed) < size - ID_BYTES:",
        breaks="an insert with one block id too few is not refused",
    ),
    _node(
        name="last-block-unread",
        old="if child.key != view[pos:stop]:",
        new="if child.key[:-unit] != view[pos : stop - unit]:",
        breaks="the last block of a node is taken for equal without a look",
    ),
    Fault(
        name="depth-of-whole-node",
        path="radixcache/tree/node.py",
        old="return child, inside, pos + inside",
        new="return child, inside, stop",
        breaks="a match that ends inside a node claims all of it",
    ),
    _node(
        name="private-children-unseen",
        old="child = node.children.get(tag + view[pos : pos + unit])",
        new="child = node.children.get(bytes(view[pos : pos + unit]))",
        breaks="a scope does not find what it published",
    ),
    _node(
        name="only-the-deepest-fork",
        old="        if fork is start:\n            break",
        new="        break",
        breaks="a private path that leaves the PUBLIC one further up is not found",
    ),
    Fault(
        name="fork-inside-a-node",
        path="radixcache/tree/node.py",
        old="fork, pos = end.parent, pos - inside",
        new="fork = end.parent",
        breaks="private branches are looked for with the wrong block",
    ),
    _node(
        name="fork-steps-one-block",
        old="pos -= len(fork.key)",
        new="pos -= unit",
        breaks="going up, private branches above a long node are looked for with the wrong block",
    ),
    Fault(
        name="private-always-wins",
        path="radixcache/tree/node.py",
        old="if private[2] > best[2]:",
        new="if private[2]:",
        breaks="a shorter private path hides a longer PUBLIC one",
    ),
    _node(
        name="ids-of-whole-node",
        old="parts.append(memoryview(node.ids)[:last_bytes])",
        new="parts.append(node.ids)",
        breaks="a match that ends inside a node hands out block ids beyond its end",
    ),
    _node(
        name="ids-upside-down",
        old="    parts.reverse()\n",
        new="",
        breaks="the block ids of a path of several nodes come in the wrong order",
    ),
    _match(
        name="stale-match",
        old="if self._version != self._forest.version:",
        new="if self._version > self._forest.version:",
        breaks="a match read late hands out blocks that may be somebody else's",
    ),
    _match(
        name="match-bytes-for-ids",
        old="gather(self._node, num_blocks * ID_BYTES)",
        new="gather(self._node, num_blocks)",
        breaks="a match hands out a quarter of its block ids",
    ),
)
