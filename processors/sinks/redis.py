"""``RedisSink``: the newest result of each key, in Redis.

    <prefix><key>                the value, which other programs read
    holdfast:sink:<name>         a hash: for each key, topic, partition and offset of the result that was stored last

One script of Redis compares both and stores both, so nothing comes between. The positions of deleted keys stay, so a
repeated result never brings a deleted key back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.installation import naming_extras
from holdfast.infra.masking import shown_url
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sinks.errors import SinkInvalid, SinkRowsRefused
from holdfast.processors.engine.sinks.sink import BatchingSink, SinkBatch, SinkItem
from holdfast.processors.sinks.patience import Attempts, Patience

#: Results of one call of the script. Redis serves nobody else while a script runs.
AT_ONCE = 500
#: Seconds of one request.
TIMEOUT_S = 10.0
#: The codes of Redis' errors that mean: try again later. The error of a script has the code in its text.
LATER = re.compile(r"(?:^|[ -])(LOADING|OOM|READONLY|MISCONF|BUSY|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|NOREPLICAS)\b")
#: KEYS: the positions, then the keys. ARGV: topic and partition, seconds of life, then offset, presence and value of
#: each key. A position is "offset/topic/partition".
SCRIPT = """
local stored = 0
for at = 2, #KEYS do
  local arg = 3 + (at - 2) * 3
  local offset, present, value = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
  local known = redis.call('HGET', KEYS[1], KEYS[at])
  local older = true
  if known then
    local split = string.find(known, '/', 1, true)
    if string.sub(known, split + 1) == ARGV[1] then
      older = tonumber(string.sub(known, 1, split - 1)) <= tonumber(offset)
    end
  end
  if older then
    if present == '0' then
      redis.call('DEL', KEYS[at])
    elseif ARGV[2] == '0' then
      redis.call('SET', KEYS[at], value)
    else
      redis.call('SET', KEYS[at], value, 'EX', ARGV[2])
    end
    redis.call('HSET', KEYS[1], KEYS[at], offset .. '/' .. ARGV[1])
    stored = stored + 1
  end
end
return stored
"""


class RedisUnusable(HoldfastError):
    """Redis refuses the user of a ``RedisSink``, or a key of the sink has another type."""


class RedisSink(BatchingSink):
    """Stores the newest result of each key as a string in Redis; None deletes the key.

    A repeated or late result never overwrites a newer one. Redis itself may lose the last second of writes when its
    machine fails; ``appendfsync always`` prevents that. Redis Cluster is not supported.

    Args:
        url: The URL of the server, for example ``redis://user:password@host:6379/0``, or ``rediss://`` with TLS.
        prefix: The beginning of all keys in Redis.
        name: The name of the sink. The positions are in the hash ``holdfast:sink:<name>``.
        key_serializer: Makes the rest of the key in Redis from the message key; None takes texts and bytes.
        value_serializer: Makes the value; None writes JSON. Texts and bytes stay as they are.
        ttl_s: Seconds after which a key ends in Redis; 0 for never.
        retry: How often to try again while Redis does not answer.

    Raises:
        SinkInvalid: An argument has a wrong value.
        ExtraMissing: redis-py is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        name: str = "redis",
        key_serializer: Callable[[Any], str | bytes] | None = None,
        value_serializer: Callable[[Any], str | bytes] | None = None,
        ttl_s: int = 0,
        retry: Patience | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(ttl_s, int) or isinstance(ttl_s, bool) or ttl_s < 0:
            raise SinkInvalid(f"`ttl_s` is {ttl_s!r}; expected whole seconds.", action="Write `ttl_s=3600`.")
        with naming_extras():
            import redis  # type: ignore[import-not-found,unused-ignore] # an extra

        try:
            self._client = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S / 2, health_check_interval=30
            )
        except ValueError as wrong:
            raise SinkInvalid(
                f"The URL {shown_url(str(url))!r} of a RedisSink can't be used.", action="Write `redis://host:6379/0`."
            ) from wrong
        self._redis = redis
        self._script = self._client.register_script(SCRIPT)
        self.name = check_name(name, "name of a sink")
        self._prefix, self._positions = prefix.encode(), f"holdfast:sink:{name}"
        self._place = f"{shown_url(url)} {prefix}*"
        self._key, self._value, self._ttl_s = key_serializer, value_serializer, ttl_s
        self._attempts = Attempts(retry or Patience(), f"Redis at {shown_url(url)}")

    @property
    def connects_to(self) -> ExternalSystem:
        """The URL of the server without its password, and the beginning of the keys."""
        return ExternalSystem("redis", self._place)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def write(self, batch: SinkBatch) -> None:
        """Stores the newest result of each key of a batch.

        Raises:
            SinkBackpressureError: Redis does not answer, or has no memory left.
            SinkRowsRefused: A key or a value can't be serialized.
            RedisUnusable: Redis refuses the user, or a key has another type.
            SinkSystemAway: Redis has not answered for a long time.
        """
        newest, refused = dict[bytes, tuple[int, bytes | None]](), list[tuple[SinkItem, str]]()
        for item in batch:
            try:
                newest[self._key_of(item)] = item.offset, self._value_of(item)
            except Exception as failure:  # a serializer of the user may raise anything
                place = f"{batch.topic}[{batch.partition}] offset {item.offset}"
                refused.append((item, f"The result of {place} can't be stored: {type(failure).__name__}: {failure}."))
        if refused:
            raise SinkRowsRefused(batch, refused, "Give the message a key, and a value that the serializer can write.")
        waiting = list(newest.items())
        for first in range(0, len(waiting), AT_ONCE):
            self._store(batch, waiting[first : first + AT_ONCE])

    def _store(self, batch: SinkBatch, some: list[tuple[bytes, tuple[int, bytes | None]]]) -> None:
        given: list[Any] = [f"{batch.topic}/{batch.partition}", self._ttl_s]
        for _, (offset, value) in some:
            given += [offset, int(value is not None), b"" if value is None else value]
        errors = self._redis.exceptions
        try:
            self._script(keys=[self._positions, *(key for key, _ in some)], args=given)
        except (errors.AuthenticationError, errors.NoPermissionError) as refused:
            raise self._unusable(
                refused, "Correct user and password in the `url`, or the rights of the user."
            ) from refused
        except errors.ResponseError as failure:
            if not LATER.search(str(failure)):
                action = f"Delete the key that is no string, or no hash: {self._positions}. Or write another `prefix`."
                raise self._unusable(failure, action) from failure
            self._attempts.failed(failure)
        except (errors.RedisError, OSError) as failure:
            self._attempts.failed(failure)
        self._attempts.succeeded()

    @staticmethod
    def _unusable(failure: Exception, action: str) -> RedisUnusable:
        return RedisUnusable(f"Redis refused the results: {failure}.", action=action)

    def _key_of(self, item: SinkItem) -> bytes:
        made = item.key if self._key is None else self._key(item.key)
        if not isinstance(made, (str, bytes)):
            raise TypeError(f"the key {made!r} is of type {type(made).__name__}; expected a text or bytes")
        return self._prefix + (made.encode() if isinstance(made, str) else made)

    def _value_of(self, item: SinkItem) -> bytes | None:
        if item.value is None:
            return None
        made = item.value if self._value is None else self._value(item.value)
        if isinstance(made, str):
            return made.encode()
        return made if isinstance(made, bytes) else msgspec.json.encode(made)
