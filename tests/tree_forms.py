"""Short forms that the tree's tests share."""

NS = "model"


def put(tree, tokens, block_ids, namespace=NS):
    """Insert."""
    return tree.insert(tokens, block_ids, namespace=namespace)


def get(tree, tokens, namespace=NS):
    """Block ids of a match."""
    return tree.match(tokens, namespace=namespace).block_ids


def held_bytes(tree):
    """Memory behind the keys and block ids of all nodes."""
    return sum(n.key.__alloc__() + n.ids.__alloc__() for n in tree._forest.nodes())
