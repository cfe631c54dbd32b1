"""Tables and links for the pages of assets and checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

#: The name of the metadata entry that links an asset to the docs.
DOCS = "docs"
_KINDS = {int: "int", float: "float", str: "string"}


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> dg.TableMetadataValue:
    """Rows of integers, floats and strings as a Dagster table; ``columns`` names the columns if there are no rows.

    All rows have the same keys, and the first row's values determine the column types.
    """
    first = rows[0] if rows else dict.fromkeys(columns, "")
    schema = dg.TableSchema([dg.TableColumn(name, _KINDS[type(value)]) for name, value in first.items()])
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows], schema=schema)


def docs(page: str) -> dict[str, dg.UrlMetadataValue]:
    """A metadata entry that links an asset to a page of the docs.

    ``page`` is a file in the folder ``docs``, which Dagster's webserver serves. The function ``docs_below`` later adds
    the webserver's path prefix to the link.
    """
    return {DOCS: dg.MetadataValue.url(f"/docs/{page}")}


def docs_below(prefix: str, spec: dg.AssetSpec) -> dg.AssetSpec:
    """A copy of ``spec`` whose link to the docs begins with the webserver's path prefix."""
    link = spec.metadata.get(DOCS)
    if not isinstance(link, dg.UrlMetadataValue):
        return spec
    return spec.replace_attributes(metadata={**spec.metadata, DOCS: dg.MetadataValue.url(f"{prefix}{link.url}")})
