"""Connections that say what is wrong with the wire itself: TLS where there is none, or the reverse, and whom to trust.

redis-py tells all of these as a lost connection, which would be waited for. They are looked into where a
connection is made; a blocking client makes the first one of every part.
"""

import socket
import ssl
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

LOOK_S = 2.0
# OpenSSL's numbers: the certificate is for another name, for another address.
_OTHER_NAME = (62, 64)
_NOT_YET_VALID, _CERTIFICATE_EXPIRED = 9, 10
# What a server says of a client's certificate in whose chain or time it does not believe.
_DISTRUSTED = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED", "CERTIFICATE_REVOKED")


class WrongWire(RedisError):
    """One sentence with the mend. Not a lost connection: trying again does not help."""


class PlainConnection(redis.Connection):
    """A connection without TLS."""

    def connect(self) -> None:
        try:
            super().connect()
        except RedisConnectionError as error:
            if self.host:  # else no Sentinel has named one
                _look_for_tls(self, error)
            raise


class TlsConnection(redis.SSLConnection):
    """A connection over TLS."""

    def connect(self) -> None:
        try:
            super().connect()
        except (RedisConnectionError, RedisTimeoutError) as error:
            if self.host:
                _look_at_tls(self, error)
            raise


class SentinelConnection(PlainConnection, SentinelManagedConnection):
    """A connection without TLS to the master that the Sentinels name."""


class SentinelTlsConnection(TlsConnection, SentinelManagedSSLConnection):
    """A connection over TLS to the master that the Sentinels name."""


def _look_for_tls(connection: Any, error: RedisConnectionError) -> None:
    """A port that wants TLS closes a connection that speaks otherwise, without a word."""
    host, port = connection.host, connection.port
    if isinstance(error.__context__, ConnectionRefusedError) or not speaks_tls(host, port):
        return
    raise WrongWire(f"{host}:{port} speaks TLS: write rediss:// instead of redis:// in TOKENMILL_REDIS_URL") from error


def speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def speaks_plainly(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), LOOK_S) as plain:
            plain.sendall(b"PING\r\n")
            return plain.recv(1) in (b"+", b"-")
    except OSError:
        return False


def _look_at_tls(connection: Any, error: RedisConnectionError | RedisTimeoutError) -> None:
    host, port = connection.host, connection.port
    where = f"{host}:{port}"
    cause = _tls_fault(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise WrongWire(_distrust(host, where, cause)) from error
    if cause is None or isinstance(cause, ssl.SSLEOFError):
        # A plain Redis may take the beginning of TLS for half a command, and wait for the rest.
        if isinstance(error, RedisTimeoutError) and speaks_plainly(host, port):
            raise WrongWire(_no_tls(where)) from error
        cause = None if isinstance(error, RedisTimeoutError) else _alert(connection)
    if cause is not None and (said := _told(where, cause)):
        raise WrongWire(said) from error


def _tls_fault(error: BaseException) -> ssl.SSLError | None:
    cause: BaseException | None = error.__context__
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__context__
    return cause


def _alert(connection: Any) -> ssl.SSLError | None:
    """What a server says that ends a connection right after the handshake.

    It judges the client's certificate then, and whoever is writing meanwhile hears of a broken pipe instead.
    """
    try:
        with connection._connect() as plainly:
            plainly.settimeout(LOOK_S)
            plainly.recv(1)
    except ssl.SSLError as alert:
        return alert
    except (OSError, RedisError):
        return None
    return None


def _no_tls(where: str) -> str:
    return f"{where} does not speak TLS: give the port that does, or write redis:// in TOKENMILL_REDIS_URL"


def _told(where: str, cause: ssl.SSLError) -> str | None:
    # Faults of the ssl module itself have neither.
    reason, library = str(getattr(cause, "reason", None) or cause), getattr(cause, "library", "")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return _no_tls(where)
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"Redis at {where} wants a certificate: add ssl_certfile=FILE&ssl_keyfile=FILE to TOKENMILL_REDIS_URL"
    if any(word in reason for word in _DISTRUSTED):
        why = next((f", which is {word}" for word in ("expired", "revoked") if word.upper() in reason), "")
        return (
            f"Redis at {where} does not trust the certificate of ssl_certfile{why}: give one that its CA has signed, "
            f"and that is valid now"
        )
    if "ALERT" not in reason and (library in ("X509", "PEM") or "KEY" in reason or "PEM" in reason):
        return f"the files of ssl_ca_certs, ssl_certfile and ssl_keyfile cannot be used ({reason}): correct them"
    return None


def _distrust(host: str, where: str, cause: ssl.SSLCertVerificationError) -> str:
    why = cause.verify_message.rstrip(".")
    if cause.verify_code in _OTHER_NAME:
        mend = f"use a name that stands in it instead of {host} in TOKENMILL_REDIS_URL"
        return f"the certificate of Redis at {where} is for another name ({why}): {mend}"
    if cause.verify_code == _CERTIFICATE_EXPIRED:
        return f"the certificate of Redis at {where} has expired: renew it there"
    if cause.verify_code == _NOT_YET_VALID:
        return f"the certificate of Redis at {where} is not yet valid: look at the clocks here and there, or renew it"
    mend = "add ssl_ca_certs=FILE, its CA's certificate, to TOKENMILL_REDIS_URL"
    return f"the certificate of Redis at {where} is not trusted here ({why}): {mend}"
