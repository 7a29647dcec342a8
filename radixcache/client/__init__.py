"""Clients of a radixcache server: :class:`Client` and, awaited, :class:`AsyncClient`.

Needs grpcio and protobuf; no torch, no engine.
"""

from radixcache.client._async import AsyncAnswerStream, AsyncClient
from radixcache.client._base import DEFAULT_ADDRESS
from radixcache.client._options import GenerateOptions, PromptOptions, SamplingOptions
from radixcache.client._sync import AnswerStream, Client

__all__ = [
    "DEFAULT_ADDRESS",
    "AnswerStream",
    "AsyncAnswerStream",
    "AsyncClient",
    "Client",
    "GenerateOptions",
    "PromptOptions",
    "SamplingOptions",
]
