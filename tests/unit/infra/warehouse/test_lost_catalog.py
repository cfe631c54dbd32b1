"""The catalog is missing or empty, but the warehouse holds tables: an error, never an empty warehouse."""

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.warehouse.catalog import existing_catalog, open_catalog, read_table
from holdfast.infra.warehouse.errors import CatalogLost, TableUnknown
from holdfast.infra.warehouse.stored_tables import StoredTables


@pytest.fixture
def settings(tmp_path):
    return load_settings(home=tmp_path)


def hold_a_table(settings):
    """Write the files that a table has on the disk."""
    metadata = settings.paths.warehouse / "data" / "fleet" / "aircraft" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "00001-0.metadata.json").write_text("{}")


@pytest.mark.parametrize("begun_anew", [False, True], ids=["gone", "begun anew"])
def test_a_lost_catalog_is_named_with_the_way_to_have_it_again(settings, begun_anew):
    hold_a_table(settings)
    if begun_anew:
        open_catalog(settings)
    for read in (
        lambda: read_table(settings, "fleet", "aircraft"),
        lambda: StoredTables(lambda: existing_catalog(settings)).versions("fleet", "aircraft"),
    ):
        with pytest.raises(CatalogLost, match=r"fleet\.aircraft") as lost:
            read()
        assert "holdfast warehouse register" in lost.value.action


def test_a_warehouse_without_tables_has_none(settings):
    for read in (
        lambda: read_table(settings, "fleet", "aircraft"),
        lambda: StoredTables(lambda: existing_catalog(settings)).versions("fleet", "aircraft"),
    ):
        with pytest.raises(TableUnknown):
            read()
