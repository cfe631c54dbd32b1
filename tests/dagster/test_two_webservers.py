"""Two installations start their webservers at the same moment. Each webserver gets a separate address."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.orchestration.host import local


@pytest.mark.thorough
def test_two_that_start_at_once_do_not_take_each_other_for_themselves(tmp_path: Path) -> None:
    """Two webservers that start at once get different ports.

    Without a guard, both starts find the same port free. One webserver gets the port, and both starts then believe that
    it is the webserver that they started.
    """
    homes = [load_settings(home=tmp_path / name, cache=tmp_path / "cache") for name in ("one", "other")]
    try:
        with ThreadPoolExecutor(4) as pool:
            # each home is started twice at the same time; the second start finds the webserver of the first
            urls = list(pool.map(lambda settings: local.start_webserver(settings, timeout_s=240), [*homes, *homes]))
        assert urls[:2] == urls[2:]
        urls = urls[:2]
        assert len(set(urls)) == 2
        running = [local.running(settings, local.WEBSERVER) for settings in homes]
        assert [None if each is None else each.url for each in running] == urls
    finally:
        for settings in homes:
            local.stop(settings, local.WEBSERVER)
