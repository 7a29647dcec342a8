"""Random numbers as a pure function of what they are for."""

import hashlib
import struct

__all__ = ["uniform"]


def uniform(seed: int, index: int, position: int) -> float:
    """Return the random number of one draw, in [0, 1), with 53 random bits.

    There is no generator state: neither the other requests of the batch nor a preemption can
    shift the numbers a sequence sees.

    Args:
        seed: the request's seed, an int64.
        index: which of the request's sequences.
        position: how many tokens the sequence has drawn before.
    """
    digest = hashlib.blake2b(struct.pack("<qqq", seed, index, position), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) * 2.0**-53
