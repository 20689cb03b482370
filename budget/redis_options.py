"""The options in the URL of a Redis: which there are, and what each may say."""

import math
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from budget.redis_url import BadRedisUrl, is_sentinel, without_secret

_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def _seconds(value: str) -> bool:
    return 0 < float(value) < math.inf


def _number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 10


def _ciphers(value: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(value)
    except ssl.SSLError:
        return False
    return True


def _word(*words: str) -> Callable[[str], bool]:
    return lambda value: value.lower() in words


def _anything(_: str) -> bool:
    return True


_SWITCH = (_word("true", "false", "yes", "no", "1", "0", "on", "off", "t", "f", "y", "n"), "true or false")
_SECONDS = (_seconds, "a number of seconds above 0")
_NUMBER = (_number, "a whole number")
_ANYTHING = (_anything, "")
# What each may say, as a test and in words.
_KNOWN: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "client_name": _ANYTHING,
    "db": _NUMBER,
    "health_check_interval": _NUMBER,
    "max_connections": _NUMBER,
    "password": _ANYTHING,
    "protocol": (_word("2", "3"), "2 or 3"),
    "retry_on_timeout": _SWITCH,
    "socket_connect_timeout": _SECONDS,
    "socket_keepalive": _SWITCH,
    "socket_timeout": _SECONDS,
    "ssl_ca_certs": _ANYTHING,
    "ssl_ca_data": _ANYTHING,
    "ssl_ca_path": _ANYTHING,
    "ssl_cert_reqs": (_word("none", "optional", "required"), "none, optional or required"),
    "ssl_certfile": _ANYTHING,
    "ssl_check_hostname": _SWITCH,
    "ssl_ciphers": (_ciphers, "names that OpenSSL has for ciphers, with a colon between them"),
    "ssl_exclude_verify_flags": _ANYTHING,
    "ssl_include_verify_flags": _ANYTHING,
    "ssl_keyfile": _ANYTHING,
    "ssl_min_version": (_word("771", "772"), "771 (TLS 1.2) or 772 (TLS 1.3)"),
    "ssl_password": _ANYTHING,
    "username": _ANYTHING,
}
_OF_SENTINELS = {"sentinel_username": _ANYTHING, "sentinel_password": _ANYTHING}


def check(url: str) -> None:
    """Refuse options that cannot be meant.

    Raises:
        BadRedisUrl: unknown, without TLS, a value that is none, or a file that cannot be read.
    """
    scheme, _, rest = url.partition("://")
    query = rest.partition("?")[2]
    options = dict(parse_qsl(query))
    if "@" not in query:  # else what looks like an option may be a password
        _check_names_and_values(url, options)
    tls = [name for name in options if name.startswith("ssl_")]
    if tls and not scheme.startswith("rediss"):
        meant = "rediss+sentinel" if is_sentinel(url) else "rediss"
        raise BadRedisUrl(
            f"{without_secret(url)!r} has {tls[0]}, which is for TLS: begin it with {meant}://, or leave that out"
        )
    for name in _FILES:
        if name in options:
            _check_file(name, options[name])
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise BadRedisUrl("TOKENMILL_REDIS_URL names a key in ssl_keyfile, but no certificate: add ssl_certfile=FILE")
    if "ssl_certfile" in options:
        _check_key(options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password"))


def _check_names_and_values(url: str, options: Mapping[str, str]) -> None:
    known = {**_KNOWN, **(_OF_SENTINELS if is_sentinel(url) else {})}
    for name, value in options.items():
        if name == "decode_responses":  # which has a refusal of its own
            continue
        if name not in known:
            raise BadRedisUrl(
                f"TOKENMILL_REDIS_URL has no option {name!r}: correct it to one of {', '.join(sorted(known))}"
            )
        fits, words = known[name]
        try:
            may_be = fits(value)
        except ValueError:
            may_be = False
        if not may_be:
            raise BadRedisUrl(f"{name} of TOKENMILL_REDIS_URL is {value!r}: give {words}")


def _check_file(name: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise BadRedisUrl(
            f"{name} of TOKENMILL_REDIS_URL names {path}, which cannot be read ({error.strerror}): correct the path"
        ) from error


def _check_key(certificate: str, key: str | None, password: str | None) -> None:
    """Refuse an encrypted key whose pass phrase is missing, which OpenSSL would ask the terminal for, or wrong."""
    asked = False

    def answer() -> str:
        nonlocal asked
        asked = True
        return password or ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=answer)
    except (OSError, ValueError) as error:
        if asked:  # else it is told where it is used
            mend = "add its pass phrase as ssl_password" if password is None else "correct ssl_password"
            raise BadRedisUrl(
                f"the key in {key or certificate} is encrypted, and does not open: {mend} in TOKENMILL_REDIS_URL"
            ) from error
