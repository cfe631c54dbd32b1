"""Holdfast: stateful Kafka processors in Python, with deployment, recovery, snapshots and repair of their state.

The names in ``__all__`` are the public API. Every other name is private and may change without notice::

    from holdfast import Application, State

    app = Application(broker_address="localhost:9092", consumer_group="consumer")

- Processors: ``Application``, ``StreamingDataFrame``, ``StreamingSeries``, ``State``, ``Context``, ``MessageContext``,
  ``message_context``, ``Slot``, ``Topic``, ``TopicConfig``, ``Topology``, ``NotFound``, ``same_as``.
- Formats with a schema: ``AvroDeserializer``, ``AvroSerializer``, ``JSONDeserializer``, ``JSONSerializer``,
  ``ProtobufDeserializer``, ``ProtobufSerializer``, ``SchemaRegistryClientConfig``,
  ``SchemaRegistrySerializationConfig``.
- Built-in aggregates: ``Collect``, ``Count``, ``Last``, ``Max``, ``Mean``, ``Min``, ``Sum``.
- Errors: ``HoldfastError`` is the base class; its ``action`` is the command or edit that repairs the fault.
- Tests without a broker: ``InMemoryCluster``, ``InlineProcess``, ``VirtualClock``, ``Network``, ``Fate`` and
  ``Partition``.
- Verbs: ``open_verbs``; a request class for each verb, which is ``Adopt``, ``Backfill``, ``Clean``, ``Clear``,
  ``Compact``, ``Deploy``, ``Erase``, ``Provision``, ``PutBack``, ``Replay``, ``Reposition``, ``Restart``,
  ``Restore``, ``Rollback``, ``Scale`` or ``Stop``; and the selections of keys (``Everything``, ``Keys``, ``Prefix``).
- Reading state from other programs: ``StateClient``, ``AsyncStateClient`` and ``StateAnswer``; their errors are
  ``StateAway``, ``StateRefused``, ``StoreUnknown`` and ``QueryWrong``.
- Warehouse: ``read_table`` without a JVM; ``key_at`` and ``state_at`` with Spark.
- Dagster: ``definitions``, which you can merge with your own assets.
- Settings: ``Settings`` and ``load_settings``.

Invariants:
    - A name is imported at its first use. ``import holdfast`` imports neither the Kafka client nor RocksDB, so set-up
      and ``holdfast --help`` are fast.
    - In the repository, the four folders of this package are links to the folders at the top level. Each module has
      only one name, ``holdfast.…``. An import under another name raises an error.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from holdfast.assets.spark.past import key_at, state_at
    from holdfast.infra.errors import HoldfastError
    from holdfast.infra.kafka.errors import KafkaFailed
    from holdfast.infra.kafka.records import Partition
    from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
    from holdfast.infra.settings.settings import Settings, load_settings
    from holdfast.infra.warehouse.catalog import read_table
    from holdfast.orchestration.definitions import definitions
    from holdfast.orchestration.verbs import open_verbs
    from holdfast.processors.application.application import Application
    from holdfast.processors.application.arguments import ApplicationInvalid
    from holdfast.processors.client.answers import StateAnswer
    from holdfast.processors.client.async_state_client import AsyncStateClient
    from holdfast.processors.client.errors import StateRefused
    from holdfast.processors.client.state_client import StateClient
    from holdfast.processors.engine.aggregates.aggregation import Collect, Count, Last, Max, Mean, Min, Sum
    from holdfast.processors.engine.changelog.format import ValueNotStorable
    from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
    from holdfast.processors.engine.dataframe.message_context import MessageContext, message_context
    from holdfast.processors.engine.expressions.series import StreamingSeries
    from holdfast.processors.engine.formats.avro import AvroDeserializer, AvroSerializer
    from holdfast.processors.engine.formats.json_schema import JSONDeserializer, JSONSerializer
    from holdfast.processors.engine.formats.protobuf import ProtobufDeserializer, ProtobufSerializer
    from holdfast.processors.engine.joins.lookups import NotFound
    from holdfast.processors.engine.queries.errors import QueryWrong, StateAway, StoreUnknown
    from holdfast.processors.engine.record_size import RecordTooLarge
    from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
    from holdfast.processors.engine.schedules.slot import Slot
    from holdfast.processors.engine.state.errors import StateFailed
    from holdfast.processors.engine.state.interface import State
    from holdfast.processors.engine.steps.function_text import same_as
    from holdfast.processors.engine.steps.processing import Context
    from holdfast.processors.engine.steps.topic import Topic, TopicConfig
    from holdfast.processors.engine.topology import Topology
    from holdfast.processors.lifecycle.plans.requests import (
        Adopt,
        Backfill,
        Clean,
        Clear,
        Compact,
        Deploy,
        Erase,
        Everything,
        Keys,
        Prefix,
        Provision,
        PutBack,
        Replay,
        Reposition,
        Restart,
        Restore,
        Rollback,
        Scale,
        Stop,
    )
    from holdfast.processors.testing.clock import VirtualClock
    from holdfast.processors.testing.cluster import InMemoryCluster
    from holdfast.processors.testing.network import Fate, Network
    from holdfast.processors.testing.process import InlineProcess

__all__ = [
    "Adopt",
    "Application",
    "ApplicationInvalid",
    "AsyncStateClient",
    "AvroDeserializer",
    "AvroSerializer",
    "Backfill",
    "Clean",
    "Clear",
    "Collect",
    "Compact",
    "Context",
    "Count",
    "Deploy",
    "Erase",
    "Everything",
    "Fate",
    "HoldfastError",
    "InMemoryCluster",
    "InlineProcess",
    "JSONDeserializer",
    "JSONSerializer",
    "KafkaFailed",
    "Keys",
    "Last",
    "Max",
    "Mean",
    "MessageContext",
    "Min",
    "Network",
    "NotFound",
    "Partition",
    "Prefix",
    "ProcessingFailed",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "Provision",
    "PutBack",
    "QueryWrong",
    "RecordTooLarge",
    "Replay",
    "Reposition",
    "Restart",
    "Restore",
    "Rollback",
    "Scale",
    "SchemaRegistryClientConfig",
    "SchemaRegistrySerializationConfig",
    "Settings",
    "Slot",
    "State",
    "StateAnswer",
    "StateAway",
    "StateClient",
    "StateFailed",
    "StateRefused",
    "Stop",
    "StoreUnknown",
    "StreamingDataFrame",
    "StreamingSeries",
    "Sum",
    "Topic",
    "TopicConfig",
    "Topology",
    "ValueNotStorable",
    "VirtualClock",
    "definitions",
    "key_at",
    "load_settings",
    "message_context",
    "open_verbs",
    "read_table",
    "same_as",
    "state_at",
]

#: Module -> its public names, separated by spaces.
_NAMES = {
    "assets.spark.past": "key_at state_at",
    "infra.errors": "HoldfastError",
    "infra.kafka.errors": "KafkaFailed",
    "infra.kafka.records": "Partition",
    "infra.schemas.config": "SchemaRegistryClientConfig SchemaRegistrySerializationConfig",
    "infra.settings.settings": "Settings load_settings",
    "infra.warehouse.catalog": "read_table",
    "orchestration.definitions": "definitions",
    "orchestration.verbs": "open_verbs",
    "processors.application.application": "Application",
    "processors.application.arguments": "ApplicationInvalid",
    "processors.client.answers": "StateAnswer",
    "processors.client.async_state_client": "AsyncStateClient",
    "processors.client.errors": "StateRefused",
    "processors.client.state_client": "StateClient",
    "processors.engine.changelog.format": "ValueNotStorable",
    "processors.engine.aggregates.aggregation": "Collect Count Last Max Mean Min Sum",
    "processors.engine.dataframe.dataframe": "StreamingDataFrame",
    "processors.engine.dataframe.message_context": "MessageContext message_context",
    "processors.engine.formats.avro": "AvroDeserializer AvroSerializer",
    "processors.engine.formats.json_schema": "JSONDeserializer JSONSerializer",
    "processors.engine.formats.protobuf": "ProtobufDeserializer ProtobufSerializer",
    "processors.engine.expressions.series": "StreamingSeries",
    "processors.engine.steps.function_text": "same_as",
    "processors.engine.joins.lookups": "NotFound",
    "processors.engine.schedules.slot": "Slot",
    "processors.engine.steps.processing": "Context",
    "processors.engine.steps.topic": "Topic TopicConfig",
    "processors.engine.queries.errors": "QueryWrong StateAway StoreUnknown",
    "processors.engine.record_size": "RecordTooLarge",
    "processors.engine.runtime.task.failure_policy": "ProcessingFailed",
    "processors.engine.state.errors": "StateFailed",
    "processors.engine.state.interface": "State",
    "processors.engine.topology": "Topology",
    "processors.lifecycle.plans.requests": "Adopt Backfill Clean Clear Compact Deploy Erase Everything Keys "
    "Prefix Provision PutBack Replay Reposition Restart Restore Rollback Scale Stop",
    "processors.testing.clock": "VirtualClock",
    "processors.testing.cluster": "InMemoryCluster",
    "processors.testing.network": "Fate Network",
    "processors.testing.process": "InlineProcess",
}
_HOMES = {name: f"holdfast.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Imports a public name from its module at its first use.

    Raises:
        AttributeError: The package has no such public name.
        ExtraMissing: The name needs libraries of an extra that is not installed.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("holdfast")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}; public names are {', '.join(__all__)}")
    from holdfast.infra.installation import naming_extras

    with naming_extras():
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
