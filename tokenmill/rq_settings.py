"""Where Redis is, for RQ's own commands: `rq info -c tokenmill.rq_settings`.

They take it from TOKENMILL_REDIS_URL, so a password stands neither in what is typed nor in a list of processes,
and Sentinels, for which RQ has no URL, work too. RQ reads the names in capitals.
"""

from budget import environment, redis_url

_url = environment.redis_url()

if _url is not None and redis_url.is_sentinel(_url):
    _said = redis_url.sentinels(_url)
    SENTINEL = {
        "INSTANCES": _said.hosts,
        "MASTER_NAME": _said.service,
        "DB": _said.redis.get("db", 0),
        "USERNAME": _said.redis.get("username"),
        "PASSWORD": _said.redis.get("password"),
        "SSL": _said.tls,
        # RQ's own default is to wait for ever, also for a master that is gone without a word.
        "SOCKET_TIMEOUT": 5.0,
        "CONNECTION_KWARGS": {
            name: value for name, value in _said.redis.items() if name not in ("db", "username", "password")
        },
        "SENTINEL_KWARGS": _said.sentinel,
    }
elif _url is not None:
    REDIS_URL = _url
