"""Malformed settings and missing tables end in an error message, never in a traceback."""

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.paths import Paths
from holdfast.infra.settings import SettingsInvalid, load_settings
from holdfast.infra.warehouse.catalog import TableUnknown, read_table


@pytest.mark.parametrize(
    ("variable", "value"), [("HOLDFAST_PROCESSORS", "[nope"), ("HOLDFAST_KAFKA__CLIENT_CONFIG", "{bad")]
)
def test_malformed_json_names_its_variable(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsInvalid, match=variable) as refused:
        load_settings()
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION


def test_a_warehouse_without_tables_is_named(tmp_path):
    with pytest.raises(TableUnknown, match="no tables yet; expected fleet.aircraft"):
        read_table(Paths(tmp_path), "fleet", "aircraft")
