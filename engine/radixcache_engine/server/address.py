"""Where a server may listen, and why it cannot when it cannot."""

import errno
import ipaddress
import socket

from radixcache.errors import AddressError, InvalidRequestError

__all__ = ["check_host", "join", "listen_error"]


def check_host(host: str, *, allow_remote: bool) -> None:
    """Refuse an address that other machines reach, unless it was asked for by name.

    Raises:
        InvalidRequestError: the host is not a loopback address and ``allow_remote`` is false.
    """
    if not allow_remote and not _is_loopback(host):
        raise InvalidRequestError(
            "host",
            host,
            "127.0.0.1, ::1 or localhost; another address needs allow_remote (--allow-remote), "
            "because whoever reaches this server may use it",
        )


def join(host: str, port: int) -> str:
    """Return ``host:port``, with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_error(host: str, port: int) -> AddressError:
    """Build the one clear line for an address that could not be listened on.

    grpc says only that binding failed; trying once more by hand tells why.
    """
    reason = "cannot be used"
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno == errno.EADDRINUSE:
            reason = "already in use; stop what listens there or choose another port"
    return AddressError(f"cannot listen on {join(host, port)}: {reason}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
