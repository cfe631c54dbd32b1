"""Tables and links on the pages of assets and checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

#: The metadata of an asset that links to the docs.
DOCS = "docs"
_KINDS = {int: "int", float: "float", str: "string"}


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> dg.TableMetadataValue:
    """Rows of integers, floats and strings as a Dagster table; ``columns`` names the columns where it has no rows.

    All rows have the same keys, and the first row's values set the column types.
    """
    first = rows[0] if rows else dict.fromkeys(columns, "")
    schema = dg.TableSchema([dg.TableColumn(name, _KINDS[type(value)]) for name, value in first.items()])
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows], schema=schema)


def docs(page: str) -> dict[str, dg.UrlMetadataValue]:
    """A link to the page of the docs that describes the asset and the actions for it.

    ``page`` is its file below ``docs``. The webserver serves it; ``docs_below`` adds its path prefix.
    """
    return {DOCS: dg.MetadataValue.url(f"/docs/{page}")}


def docs_below(prefix: str, spec: dg.AssetSpec) -> dg.AssetSpec:
    """The asset with its link to the docs below the path prefix of the webserver."""
    link = spec.metadata.get(DOCS)
    if not isinstance(link, dg.UrlMetadataValue):
        return spec
    return spec.replace_attributes(metadata={**spec.metadata, DOCS: dg.MetadataValue.url(f"{prefix}{link.url}")})
