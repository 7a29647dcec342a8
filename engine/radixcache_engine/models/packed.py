"""One packed forward of a transformers model whose attention reads our KV pool.

The model's own code runs unchanged: embeddings, projections, norms, experts, heads. Only its
attention is ours, through transformers' attention interface, so what a model does besides
attention is right by construction and what it does in attention is checked by trace and probe.
"""

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from radixcache.attention import AttentionBackend, AttentionPlan, AttentionSpec
from radixcache.errors import CacheCorruptionError, ModelRefusedError
from radixcache.kv.pool import KVPool

__all__ = ["PackedModel"]

_INTERFACE = "radixcache"  # the name our attention is registered under
_HOLDER = "radixcache_step"  # the attribute by which a module reaches the running step


@dataclass(slots=True)
class _Call:
    """What one attention call of the traced forward looked like."""

    num_qo_heads: int
    num_kv_heads: int
    head_dims: tuple[int, int, int]  # of q, k and v
    scale: float | None
    window_left: int
    soft_cap: float
    is_causal: bool
    extras: list[str]  # arguments that would change the result and that we do not honour


@dataclass(slots=True)
class _Trace:
    """Stands in for a step at load: records the calls, computes nothing."""

    calls: list[_Call] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """One forward.

    Layers are numbered by the order of their calls, so a block that a model runs twice has KV of
    its own each time.
    """

    plan: AttentionPlan
    pool: KVPool
    backend: AttentionBackend
    slots: torch.Tensor  # int64 [T] on the pool's device
    layer: int = 0

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **settings: Any
    ) -> torch.Tensor:
        """Store the next layer's keys and values and attend; all ``[T, heads, head_dim]``."""
        layer = self.layer
        self.layer += 1
        self.pool.write(layer, k, v, self.slots)
        return self.backend.run(layer, q, self.plan, self.pool, **settings)


@dataclass(slots=True)
class _Holder:
    """Hangs on every module of one model; tells its attention which step is running."""

    step: _Step | _Trace | None = None


class PackedModel:
    """A causal LM that runs packed rows over a KV pool.

    Args:
        model: loaded for inference; its attention implementation is replaced by ours.

    Raises:
        ModelRefusedError: its attention does not go through the interface, or takes a shape or
            an argument we cannot honour; says which.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._holder = _Holder()
        parameters = inspect.signature(model.forward).parameters
        self._can_keep = "logits_to_keep" in parameters
        try:
            if "position_ids" not in parameters:
                raise ModelRefusedError("it takes no position_ids, so rows cannot be packed")
            AttentionInterface.register(_INTERFACE, _attention)
            _use_attention(model, _INTERFACE)
            for module in model.modules():
                setattr(module, _HOLDER, self._holder)
            self.specs = self._trace_specs()
        except ModelRefusedError as error:
            raise ModelRefusedError(f"{type(model).__name__} cannot be served: {error}") from error

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        return self.model.device

    def forward(
        self,
        token_ids: torch.Tensor,
        plan: AttentionPlan,
        pool: KVPool,
        backend: AttentionBackend,
        *,
        keep: torch.Tensor,
    ) -> torch.Tensor:
        """Run one step: write its K and V to the pool, return logits.

        Args:
            token_ids: int64 ``[T]``, the rows one after another.
            plan: of the same ``T`` tokens.
            pool: of one layer a spec.
            backend: runs the attention.
            keep: int64 ``[n]``, the tokens whose logits are wanted.

        Returns:
            float32 ``[n, vocab_size]`` on the model's device.

        Raises:
            CacheCorruptionError: the model ran fewer attention layers than at load.
        """
        step = _Step(plan, pool, backend, plan.out_slots.to(pool.device, torch.int64))
        logits = self._call(step, token_ids, plan.positions, keep)
        if step.layer != len(self.specs):
            raise CacheCorruptionError(
                f"the model ran {step.layer} attention layers, {len(self.specs)} at load"
            )
        return logits.float()

    def own_logits(self, token_ids: torch.Tensor, *, last: int) -> torch.Tensor:
        """Run one sequence the model's own way: eager attention, its own mask, no cache.

        Args:
            token_ids: int64 ``[n]``.
            last: how many tokens' logits are wanted, counted from the end.

        Returns:
            float32 ``[min(n, last), vocab_size]``.
        """
        extra: dict[str, Any] = {"logits_to_keep": last} if self._can_keep else {}
        _use_attention(self.model, "eager")
        try:
            with torch.inference_mode():
                ids = token_ids.to(self.device)[None]
                logits: torch.Tensor = self.model(input_ids=ids, use_cache=False, **extra).logits
        finally:
            _use_attention(self.model, _INTERFACE)
        return logits[0, -last:].float()

    def _call(
        self,
        step: _Step | _Trace,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor,
    ) -> torch.Tensor:
        device = self.device
        keep = keep.to(device)
        extra: dict[str, Any] = {"logits_to_keep": keep} if self._can_keep else {}
        self._holder.step = step
        try:
            with torch.inference_mode():
                output = self.model(
                    input_ids=token_ids.to(device)[None],
                    position_ids=positions.to(device, torch.int64)[None],
                    use_cache=False,
                    **extra,
                )
        finally:
            self._holder.step = None
        logits: torch.Tensor = output.logits[0]
        return logits if self._can_keep else logits[keep]

    def _trace_specs(self) -> tuple[AttentionSpec, ...]:
        trace = _Trace()
        one = torch.zeros(1, dtype=torch.int64)
        try:
            self._call(trace, one, one, one)
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelRefusedError(f"its forward cannot run packed rows: {error}") from error
        config = self.model.config.get_text_config(decoder=True)
        expected = getattr(config, "num_hidden_layers", len(trace.calls))
        if len(trace.calls) < expected:
            raise ModelRefusedError(
                f"only {len(trace.calls)} of {expected} layers call transformers' attention "
                "interface; the others keep state that a prefix cache does not hold"
            )
        _check_windows(config, trace.calls)
        return tuple(_spec(layer, call, trace.calls[0]) for layer, call in enumerate(trace.calls))


def _use_attention(model: PreTrainedModel, name: str) -> None:
    try:
        model.set_attn_implementation(name)
    except ValueError as error:
        raise ModelRefusedError(f"its attention cannot be replaced: {error}") from error
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation != name:
        raise ModelRefusedError("its attention does not use transformers' attention interface")


def _attention(  # noqa: PLR0917 - the interface's own signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers calls it: ``query`` is ``[1, num_heads, T, head_dim]``.

    Returns ``[1, T, num_heads, head_dim]`` and no weights.
    """
    step = getattr(module, _HOLDER).step
    window = -1 if sliding_window is None else int(sliding_window) - 1
    soft_cap = float(softcap) if softcap else 0.0
    if isinstance(step, _Trace):
        call = _Call(
            num_qo_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dims=(query.shape[-1], key.shape[-1], value.shape[-1]),
            scale=scaling,
            window_left=window,
            soft_cap=soft_cap,
            is_causal=bool(kwargs.get("is_causal", getattr(module, "is_causal", True))),
            extras=_unknown(attention_mask, kwargs),
        )
        step.calls.append(call)
        # Whatever the numbers, the forward only has to reach the next layer.
        return query.new_zeros(*query.transpose(1, 2).shape[:3], value.shape[-1]), None
    if not isinstance(step, _Step):
        raise CacheCorruptionError("attention was called outside a step")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return step.attend(q, k, v, scale=scale, window=window, soft_cap=soft_cap)[None], None


def _unknown(attention_mask: torch.Tensor | None, kwargs: dict[str, Any]) -> list[str]:
    found = [] if attention_mask is None else ["a mask of its own"]
    known = ("position_ids", "cache_position")
    return found + [
        name
        for name, item in kwargs.items()
        if isinstance(item, torch.Tensor) and name not in known
    ]


def _check_windows(config: Any, calls: list[_Call]) -> None:
    # A model that masks its window itself would be served without it, and a short probe cannot
    # see a window of thousands of tokens.
    types = getattr(config, "layer_types", None)
    size = getattr(config, "sliding_window", None)
    if not types or not size or len(types) != len(calls):
        return
    for layer, (kind, call) in enumerate(zip(types, calls, strict=True)):
        expected = size - 1 if kind == "sliding_attention" else -1
        if call.window_left != expected:
            raise ModelRefusedError(
                f"layer {layer} is {kind} with a window of {size}, but tells its attention "
                f"{call.window_left + 1 or 'none'}"
            )


def _spec(layer: int, call: _Call, first: _Call) -> AttentionSpec:
    if len(set(call.head_dims)) != 1:
        dims = "/".join(map(str, call.head_dims))
        raise ModelRefusedError(f"layer {layer}: q, k and v differ in head dim ({dims})")
    shape, wanted = (call.num_kv_heads, call.head_dims), (first.num_kv_heads, first.head_dims)
    if shape != wanted:
        raise ModelRefusedError(
            f"layer {layer}: {call.num_kv_heads} KV heads of {call.head_dims[1]}, but layer 0 has "
            f"{first.num_kv_heads} of {first.head_dims[1]}; one pool holds one shape"
        )
    if not call.is_causal:
        raise ModelRefusedError(f"layer {layer}: its attention is not causal")
    if "s_aux" in call.extras:
        raise ModelRefusedError(f"layer {layer}: attention sinks are not supported")
    if call.extras:
        raise ModelRefusedError(
            f"layer {layer}: its attention depends on {', '.join(call.extras)}, which a cached "
            "prefix does not hold"
        )
    return AttentionSpec(
        num_qo_heads=call.num_qo_heads,
        num_kv_heads=call.num_kv_heads,
        head_dim=call.head_dims[0],
        scale=call.head_dims[0] ** -0.5 if call.scale is None else float(call.scale),
        window_left=call.window_left,
        logits_soft_cap=call.soft_cap,
    )
