"""Tables and links for the pages of assets and checks."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import dagster as dg

#: The name of the metadata entry that links an asset to the docs.
DOCS = "docs"
#: The name of the metadata entry that links a store to the page that reads its keys, and the page's URL path.
READ_KEY, STATE_PAGE = "read a key", "/state"
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


def read_key(processor: str, store: str) -> dict[str, dg.UrlMetadataValue]:
    """A metadata entry that links a store's asset to the page that reads a key of the store in the running workers."""
    where = urlencode({"processor": processor, "store": store})
    return {READ_KEY: dg.MetadataValue.url(f"{STATE_PAGE}?{where}")}


def docs_below(prefix: str, spec: dg.AssetSpec) -> dg.AssetSpec:
    """A copy of ``spec`` whose links to pages of the webserver begin with the webserver's path prefix."""
    links = {name: spec.metadata.get(name) for name in (DOCS, READ_KEY)}
    moved = {
        name: dg.MetadataValue.url(f"{prefix}{link.url}")
        for name, link in links.items()
        if isinstance(link, dg.UrlMetadataValue)
    }
    return spec.replace_attributes(metadata={**spec.metadata, **moved}) if moved else spec
