"""uv gets the settings of pip's configuration that it needs to reach the same package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.infra.masking import masked
from holdfast.infra.setup.pip_settings import pip_options, uv_flags, uv_variables


def variables(environment: dict[str, str] | None = None, *, system: bool = False, **options: str) -> dict[str, str]:
    told = {name.replace("_", "-"): value for name, value in options.items()}
    seen = uv_variables(told, environment or {}, system_certificates=system)
    assert seen.pop("UV_INDEX_STRATEGY") == "unsafe-best-match"
    return seen


def test_a_variable_is_stronger_than_the_install_section_and_that_than_the_global_one() -> None:
    listing = (
        ":env:.cert='/env.pem'\nglobal.cert='/global.pem'\nglobal.index-url='https://global.example/simple'\n"
        "install.index-url='https://install.example/simple'\ndownload.timeout='3'\nnot an option\n"
    )
    assert pip_options(listing) == {"cert": "/env.pem", "index-url": "https://install.example/simple"}


def test_the_configuration_of_a_real_pip_is_read(tmp_path: Path) -> None:
    configuration = tmp_path / "pip.conf"
    configuration.write_text(
        "[global]\nindex-url = https://user:it's@one.example/simple\n"
        "extra-index-url =\n    https://two.example/simple\n    https://three.example/simple\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = {**clean, "PIP_CONFIG_FILE": str(configuration), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    options = pip_options(told)
    assert options["index-url"] == "https://user:it's@one.example/simple"
    assert options["extra-index-url"].split() == ["https://two.example/simple", "https://three.example/simple"]
    assert uv_flags(options) == ["--no-index"]


def test_indexes_hosts_proxy_and_timeout_become_variables_of_uv() -> None:
    assert variables(
        index_url="https://one.example/simple",
        extra_index_url="\nhttps://two.example/simple\nhttps://three.example/simple",
        trusted_host="one.example two.example",
        proxy="http://proxy.example:3128",
        default_timeout="180",
        progress_bar="off",
    ) == {
        "UV_DEFAULT_INDEX": "https://one.example/simple",
        "UV_INDEX": "https://two.example/simple https://three.example/simple",
        "UV_INSECURE_HOST": "one.example two.example",
        "HTTP_PROXY": "http://proxy.example:3128",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_what_the_user_set_for_uv_wins() -> None:
    set_by_user = {"UV_DEFAULT_INDEX": "https://mine.example/simple", "PATH": "/bin"}
    assert variables(set_by_user, index_url="https://one.example/simple") == set_by_user


def test_folders_of_packages_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    there = str(tmp_path)
    absent = str(tmp_path / "absent")
    assert variables(find_links=f"{there} {absent} https://x.example/w") == {
        "UV_FIND_LINKS": f"{there},https://x.example/w"
    }
    assert variables(find_links=absent) == {}


def test_the_certificates_are_those_that_pip_uses() -> None:
    assert variables(system=True) == {"UV_SYSTEM_CERTS": "true"}
    assert variables(system=True, cert="/pip.pem") == {"SSL_CERT_FILE": "/pip.pem"}
    seen = variables({"REQUESTS_CA_BUNDLE": "/requests.pem"}, system=True)
    assert seen == {"REQUESTS_CA_BUNDLE": "/requests.pem", "SSL_CERT_FILE": "/requests.pem"}
    seen = variables({"SSL_CERT_FILE": "/mine.pem"}, system=True, cert="/pip.pem")
    assert seen == {"SSL_CERT_FILE": "/mine.pem"}


@pytest.mark.parametrize(("value", "flags"), [("1", ["--no-index"]), ("true", ["--no-index"]), ("0", [])])
def test_no_index_is_an_argument(value: str, flags: list[str]) -> None:
    assert uv_flags({"no-index": value}) == flags
    assert uv_flags({}) == []


def test_no_password_is_printed() -> None:
    line = "failed to fetch https://user:secret@one.example/simple/uv/ and http://two.example/a@b"
    assert masked(line) == "failed to fetch https://***@one.example/simple/uv/ and http://two.example/a@b"
