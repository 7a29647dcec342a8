"""What a backend is given and what it promises."""

from dataclasses import dataclass
from typing import Protocol

import torch

from radixcache.attention.plan import AttentionPlan
from radixcache.errors import InvalidRequestError
from radixcache.kv.pool import KVPool

__all__ = ["AttentionBackend", "AttentionSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The attention of one layer, fixed at load.

    Attributes:
        num_qo_heads: query heads; a multiple of ``num_kv_heads``.
        num_kv_heads: key and value heads.
        head_dim: numbers a head, the same for K and V.
        scale: factor of the scores before the softmax.
        window_left: keys to the left of itself that a query sees; -1: all of them. A model's
            ``sliding_window`` of ``w`` tokens counts the query itself, so it is ``w - 1`` here.
        logits_soft_cap: scores become ``cap * tanh(score / cap)``; 0: off.
    """

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window_left: int = -1
    logits_soft_cap: float = 0.0

    def __post_init__(self) -> None:
        """Check the heads.

        Raises:
            InvalidRequestError: query heads are not a multiple of KV heads.
        """
        if self.num_kv_heads < 1 or self.num_qo_heads % self.num_kv_heads:
            raise InvalidRequestError(
                "num_qo_heads", self.num_qo_heads, f"a multiple of {self.num_kv_heads} KV heads"
            )

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_qo_heads // self.num_kv_heads


class AttentionBackend(Protocol):
    """Runs one layer's attention over the pool. Knows nothing of tree, lease or scheduler."""

    @property
    def name(self) -> str:
        """Name it is chosen by, and shown under."""
        ...

    def run(
        self,
        layer: int,
        q: torch.Tensor,
        plan: AttentionPlan,
        pool: KVPool,
        *,
        scale: float,
        window: int = -1,
        soft_cap: float = 0.0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from this step's queries to the keys their rows name.

        The step's own K and V are in the pool already. Exactly ``seq_lens[b]`` tokens are read
        for row ``b``; whatever stands in other slots has no influence.

        Args:
            layer: 0 to ``num_layers - 1``.
            q: ``[T, num_qo_heads, head_dim]``, float32, bfloat16 or float16.
            plan: the step's arrays.
            pool: K and V.
            scale: factor of the scores.
            window: ``AttentionSpec.window_left``.
            soft_cap: ``AttentionSpec.logits_soft_cap``.
            out: where to put the result; a new tensor when None.

        Returns:
            ``[T, num_qo_heads, head_dim]`` in the dtype of ``q``.
        """
        ...
