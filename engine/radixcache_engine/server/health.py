"""``grpc.health.v1``, told by the heartbeat of the step loop and by nothing else.

A busy engine is healthy; one whose step loop hangs is not, however well this server answers. The
check asks for the heartbeat's age only, so it never waits behind work and counts as none.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import grpc.aio
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from radixcache.errors import RadixCacheError

__all__ = ["HEALTH_SERVICE", "HealthServicer"]

HEALTH_SERVICE = "grpc.health.v1.Health"

_SERVICES = ("", "radixcache.v1.EngineService", "radixcache.v1.CacheService")
_Status = pb.HealthCheckResponse


class UnknownServiceError(RadixCacheError, LookupError):
    """Health was asked for a service that is not here."""

    grpc_status: ClassVar[str] = "NOT_FOUND"


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it is untyped
    """Says whether the engine works.

    Args:
        heartbeat_age_s: seconds since the step loop last came round.
        stuck_after_s: an older heartbeat means NOT_SERVING. Longer than the longest single step.
        poll_s: how often a Watch looks.
    """

    def __init__(
        self,
        heartbeat_age_s: Callable[[], float],
        *,
        stuck_after_s: float,
        poll_s: float = 0.5,
    ) -> None:
        self._heartbeat_age_s = heartbeat_age_s
        self._stuck_after_s = stuck_after_s
        self._poll_s = poll_s
        self._draining = False

    def drain(self) -> None:
        """Say NOT_SERVING from now on."""
        self._draining = True

    async def Check(
        self, request: pb.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.HealthCheckResponse:
        """Return the status now."""
        if request.service not in _SERVICES:
            raise UnknownServiceError(f"no service {request.service!r} here")
        return _Status(status=self._status())

    async def Watch(
        self, request: pb.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """Stream the status: now, and whenever it has changed."""
        known = request.service in _SERVICES
        told = None
        while True:
            status = self._status() if known else _Status.SERVICE_UNKNOWN
            if status != told:
                yield _Status(status=status)
                told = status
            await asyncio.sleep(self._poll_s)

    def _status(self) -> "pb.HealthCheckResponse.ServingStatus.ValueType":
        working = self._heartbeat_age_s() <= self._stuck_after_s
        return _Status.SERVING if working and not self._draining else _Status.NOT_SERVING
