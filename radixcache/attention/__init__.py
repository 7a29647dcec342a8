"""Attention over block indices: one plan a step, one backend a device, by name."""

from radixcache.attention.base import AttentionBackend, AttentionSpec
from radixcache.attention.cpu import CpuBackend
from radixcache.attention.plan import AttentionPlan
from radixcache.attention.reference import ReferenceBackend
from radixcache.errors import InvalidRequestError

__all__ = ["AttentionBackend", "AttentionPlan", "AttentionSpec", "create_backend"]


def create_backend(name: str = "auto", *, device: str = "cpu") -> AttentionBackend:
    """Make a backend by name.

    Args:
        name: ``"auto"`` (cpu on a CPU, else reference), ``"cpu"`` or ``"reference"``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:0"`` ...

    Raises:
        InvalidRequestError: an unknown name, or a backend that does not run on the device.
    """
    on_cpu = device.partition(":")[0] == "cpu"
    if name == "auto":
        name = "cpu" if on_cpu else "reference"
    if name == "reference":
        return ReferenceBackend()
    if name == "cpu":
        if not on_cpu:
            raise InvalidRequestError("attention_backend", name, f"reference on {device}")
        return CpuBackend.create()
    if name == "flashinfer":
        raise InvalidRequestError(
            "attention_backend", name, "auto | cpu | reference (flashinfer is not built yet)"
        )
    raise InvalidRequestError("attention_backend", name, "auto | cpu | reference")
