"""The JSON text of values that SQL can't decode, such as msgpack: a column of the history, made by Python.

Spark SQL decodes JSON values. For other codecs, a Python function decodes each value once, when its change enters the
history, and the column ``decoded`` keeps the text. The table and both views read that column, so no reader needs
Python. A history has the column as soon as its store has a value of such a codec.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.processors.engine.changelog.codec_table import BY_NUMBER, CODED
from holdfast.processors.engine.changelog.format import CODEC_JSON, FormatUnknown
from holdfast.processors.engine.changelog.stored_values import json_text
from holdfast.processors.snapshots.names import quoted

#: The column of the history with the JSON text; null for values of JSON, for raw bytes and for deletions.
DECODED = "decoded"


def _numbers(codecs: list[int]) -> str:
    return ", ".join(f"X'{number:02x}'" for number in sorted(codecs))


#: SQL: a list of the codecs that this version knows, and a list of those that only Python decodes.
KNOWN_CODECS = _numbers(list(BY_NUMBER))
#: SQL condition: only Python can decode the value.
IS_CODED = f"substring(value, 2, 1) IN ({_numbers([each.number for each in CODED])})"


def json_of(value: str = "value", decoded: str = "") -> str:
    """SQL: the JSON text of a stored value; null for raw bytes. ``decoded`` names the column with decoded texts."""
    text = f"decode(substring({value}, 11, length({value})), 'UTF-8')"
    return f"if(substring({value}, 2, 1) = X'{CODEC_JSON:02x}', {text}, {decoded or 'NULL'})"


def has_decoded(spark: SparkSession, history: str) -> bool:
    """Whether a history table has the column ``decoded``."""
    return DECODED in spark.table(quoted(history)).columns


def add_decoded(spark: SparkSession, history: str) -> None:
    """Add the column ``decoded`` to a history table; the values that it has so far are JSON or raw bytes."""
    comment = "the value as JSON text, when its codec is not JSON"
    spark.sql(f"ALTER TABLE {quoted(history)} ADD COLUMN `{DECODED}` string COMMENT '{comment}'")


def with_decoded(rows: DataFrame) -> DataFrame:
    """Adds the column ``decoded`` to rows that have the column ``value``."""
    return rows.withColumn(DECODED, _decoded(F.col("value")))


def _decoded(value: Column) -> Column:
    return F.udf(decoded_text, "string")(value)


def decoded_text(value: bytes | None) -> str | None:
    """The JSON text of a value that only Python decodes; None for all other values, and for a damaged one."""
    if value is None or len(value) < 2 or BY_NUMBER.get(value[1]) not in CODED:
        return None
    try:
        text = json_text(bytes(value))
    except FormatUnknown:
        return None  # The row's typed columns are null, and the column `why` says so.
    return None if text is None else text.decode()
