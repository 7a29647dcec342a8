"""Short forms that the tree's tests share."""

import sys
import threading

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


def run_shallow(work, limit=200):
    """Run ``work`` in a thread of its own under a small recursion limit; re-raise its error."""
    failure = []

    def run():
        normal = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
        try:
            work()
        except BaseException as error:
            failure.append(error)
        finally:
            sys.setrecursionlimit(normal)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
