"""The classes of the reference that `holdfast` does not name at its top, by page: a name, and the path of its class."""

from __future__ import annotations

#: For each page: additional classes. Users get their instances without importing the classes.
UNNAMED: dict[str, dict[str, str]] = {
    "api-joins.md": {
        "StreamingDataFrame": "processors.engine.joins.methods.StreamJoins",
        "GlobalTable": "processors.engine.joins.global_tables.GlobalTable",
    },
    "api-tables.md": {
        "Application": "processors.application.tables.ApplicationTables",
        "Table": "processors.engine.joins.tables.Table",
        "TableChanges": "processors.engine.joins.table_changes.TableChanges",
        "GroupedTable": "processors.engine.joins.table_changes.GroupedTable",
    },
    "api-topics.md": {
        "Application": "processors.application.clients.ApplicationClients",
        "Producer": "processors.application.clients.Producer",
        "KafkaMessage": "processors.engine.formats.kafka_message.KafkaMessage",
    },
    "api-schedules.md": {
        "Application": "processors.application.schedules.ApplicationSchedules",
    },
    "api-sources.md": {
        "Application": "processors.application.sources.ApplicationSources",
        "Source": "processors.engine.sources.source.Source",
        "StatefulSource": "processors.engine.sources.source.StatefulSource",
    },
    "api-connectors.md": {
        "ExternalSystem": "processors.engine.connectors.ExternalSystem",
        "Source": "processors.engine.sources.reports.ReportingSource",
        "ConnectorSpec": "processors.engine.connectors.ConnectorSpec",
    },
    "api-shipped-sources.md": {
        "FileSource": "processors.sources.file_source.FileSource",
        "CsvFormat": "processors.sources.file_rows.CsvFormat",
        "SqlSource": "processors.sources.sql_source.SqlSource",
        "HttpSource": "processors.sources.http_source.HttpSource",
        "HttpLimits": "processors.sources.event_server.HttpLimits",
    },
    "api-contracts.md": {
        "SourceContract": "processors.testing.source_contract.SourceContract",
    },
    "api-sinks.md": {
        "BaseSink": "processors.engine.sinks.sink.BaseSink",
        "BatchingSink": "processors.engine.sinks.sink.BatchingSink",
        "SqlSink": "processors.sinks.sql.SqlSink",
        "Patience": "processors.sinks.patience.Patience",
    },
    "api-sinks-staging.md": {
        "StagingSink": "processors.engine.sinks.staging.StagingSink",
        "FileSink": "processors.sinks.files.FileSink",
        "ParquetSink": "processors.sinks.files.ParquetSink",
    },
    "api-sinks-systems.md": {
        "IcebergSink": "processors.sinks.iceberg.IcebergSink",
        "RedisSink": "processors.sinks.redis.RedisSink",
        "HttpSink": "processors.sinks.http.HttpSink",
    },
    "api-columns.md": {
        "StreamingDataFrame": "processors.engine.expressions.methods.StreamColumns",
    },
    "api-waiting.md": {
        "StreamingDataFrame": "processors.engine.dataframe.calls.StreamCalls",
    },
    "api-windows.md": {
        "StreamingDataFrame": "processors.engine.windows.methods.StreamWindows",
    },
    "api-window-columns.md": {
        "Window": "processors.engine.windows.columns.Window",
        "AggregatedWindow": "processors.engine.windows.results.AggregatedWindow",
        "AggregatedCountWindow": "processors.engine.windows.results.AggregatedCountWindow",
    },
}
