"""What gives way when blocks run short, and how admission learns from it."""

from collections.abc import Callable, Iterable

from radixcache.errors import OutOfBlocksError
from radixcache.lease import Lease
from radixcache_engine.scheduler.sequence import Sequence

__all__ = ["AdmissionReserve", "choose_victim", "try_extend"]


def try_extend(lease: Lease, length: int) -> bool:
    """Make a lease cover ``length`` tokens; False when there are no blocks, and nothing changed."""
    try:
        lease.extend(length)
    except OutOfBlocksError:
        return False
    return True


def choose_victim(
    needy: Sequence, running: Iterable[Sequence], in_step: Callable[[Sequence], bool]
) -> Sequence | None:
    """Return the running sequence whose preemption throws away the least work.

    Never one that is part of the step already, and never the oldest while another is there: the
    oldest always gets on, so memory pressure ends in progress and not in a circle. ``needy``
    itself is a candidate; None when there is nobody but it and it is alone.
    """
    everybody = list(running)
    candidates = [s for s in everybody if not in_step(s)]
    oldest = min(everybody, key=_age)
    others = [s for s in candidates if s is not oldest]
    if others:
        return min(others, key=lambda s: (s.recompute_cost, -s.uid))
    return needy if len(everybody) > 1 else None


def _age(sequence: Sequence) -> tuple[float, int]:
    return (sequence.request.request.arrival, sequence.uid)


class AdmissionReserve:
    """Blocks kept back at admission for the growth of what already runs.

    The share of the running sequences' possible growth that is kept back starts low, jumps with
    every preemption and falls slowly: after pressure the engine admits less instead of preempting
    again and again.
    """

    _LOWEST = 0.05
    _JUMP = 0.3
    _FADE = 0.98

    def __init__(self) -> None:
        self._share = self._LOWEST

    def raise_(self) -> None:
        """Learn from a preemption."""
        self._share = min(1.0, self._share + self._JUMP)

    def decay(self) -> None:
        """Forget a little, once a step."""
        self._share = max(self._LOWEST, self._share * self._FADE)

    def blocks(self, running: Iterable[Sequence], block_size: int) -> int:
        """Return how many blocks to keep back; 0 when nothing runs."""
        growth = 0
        for sequence in running:
            limit = sequence.request.request.sampling.max_tokens or 0
            growth += max(limit - len(sequence.output_ids), 0)
        return int(growth * self._share) // block_size
