"""Tables on the pages of assets and checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

_KINDS = {int: "int", float: "float", str: "string"}


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> dg.TableMetadataValue:
    """Rows of integers, floats and strings as a Dagster table.

    Args:
        rows: All with the same keys; the first row's values set the column types.
        columns: The column names where ``rows`` is empty.
    """
    first = rows[0] if rows else dict.fromkeys(columns, "")
    schema = dg.TableSchema([dg.TableColumn(name, _KINDS[type(value)]) for name, value in first.items()])
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows], schema=schema)
