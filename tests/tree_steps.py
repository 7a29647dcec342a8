"""Random operations on a tree beside its model, for runs too long for hypothesis."""

from radixcache.tree.view import ORDERS
from radixcache.types import PUBLIC, Namespace
from tests.tree_driver import tokens_of

SPACES = [Namespace(kv, scope) for kv in ("m", "n") for scope in (PUBLIC, "a", "b")]
BUSY_SPACES = SPACES[:3] * 3 + SPACES[3:]
"""Most of the traffic meets in one place, or nothing interesting happens."""


def random_step(driver, dice, *, num_symbols=4, max_blocks=8):
    """One random operation, flushes and quotas rare; keeps the tree small, so often hit."""
    if len(driver.locks) > 12:
        driver.unlock(dice.randrange(13))
    if driver.tree.num_blocks > 80:
        driver.evict(dice.randrange(20))
    space = dice.choice(BUSY_SPACES)
    words = [dice.randrange(num_symbols) for _ in range(dice.randrange(max_blocks))]
    tokens = tokens_of(words, driver.size, dice.randrange(4))
    choice = dice.random()
    if choice < 0.25:
        driver.insert(space, tokens, dice.choice([0, 0, 1, 2]))
    elif choice < 0.35:
        driver.match(space, tokens)
    elif choice < 0.5:
        find = driver.lock_match if dice.random() < 0.2 else driver.lock
        find(space, tokens, priority=dice.choice([0, 0, 1, 2]))
    elif choice < 0.88 and driver.locks:
        act = dice.choice(["extend", "extend", "share", "unlock", "unlock", "unlock"])
        which = dice.randrange(len(driver.locks))
        args = {"extend": (tokens,), "share": (dice.randrange(9),), "unlock": ()}[act]
        getattr(driver, act)(which, *args)
    elif choice < 0.97:
        driver.evict(dice.randrange(6), dice.choice([None, space]))
    elif choice < 0.995:
        rare_step(driver, dice, space)
    else:
        driver.flush(dice.choice([None, space, space]))


def rare_step(driver, dice, space):
    """Quotas and pictures."""
    choice = dice.randrange(4)
    if choice == 0:
        guaranteed = dice.randrange(8)
        driver.set_quota(space, dice.choice([None, guaranteed + dice.randrange(8)]), guaranteed)
    elif choice == 1:
        driver.remove_quota(space)
    elif choice == 2:
        driver.trim()
    else:
        driver.view(dice.choice(sorted(ORDERS)))
