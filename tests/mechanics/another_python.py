"""Runs tests on another Python version, in a separate environment below ``build/``.

``make quick-on PYTHON=python3.13`` runs the quick tests; PYTHON is a program's name or path. Packages have the versions
of requirements.lock. With ``LOWEST=1``, the packages that pyproject.toml names have the lowest versions that it allows.
``make kafka-on PYTHON=python3.13`` runs the tests on a real broker, and then the demo in a home of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.infra.setup import bootstrap


def main(python: str, *, lowest: bool, kafka: bool) -> int:
    """Install the environment and run the tests. Returns the exit code of pytest, or of the demo."""
    ask = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    environment = bootstrap.PROJECT / "build" / f"python-{version}{'-lowest' if lowest else ''}"
    _install(environment, python, version, lowest=lowest)
    chosen = ["tests/kafka"] if kafka else ["tests", "--tier", "quick"]
    command = [str(environment / "bin" / "python"), "-m", "pytest", *chosen]
    command += ["--dist", "loadfile", "--no-loadscope-reorder", "--numprocesses", "3" if kafka else "2"]
    ended = subprocess.call(command, cwd=bootstrap.PROJECT)
    if ended or not kafka:
        return ended
    home = environment / "demo"
    # tidy: allow-environment because the demo is a program of its own, which gets the variables of this one
    variables = {**os.environ, "HOLDFAST_HOME": str(home)}
    return subprocess.call([str(environment / "bin" / "holdfast"), "demo"], cwd=bootstrap.PROJECT, env=variables)


def _install(environment: Path, python: str, version: str, *, lowest: bool) -> None:
    variables, flags = bootstrap._for_uv()
    uv = str(bootstrap.UV)
    if not (environment / "bin" / "python").exists():
        subprocess.run(
            [uv, "venv", "--quiet", "--seed", "--python", python, str(environment)], env=variables, check=True
        )
    install = [uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), "--no-deps", *flags]
    steps = [("--require-hashes", *bootstrap.STORED, "-r", str(bootstrap.LOCK))]
    if lowest:
        found = environment / "lowest.txt"
        resolve = [uv, "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--extra", "all", *flags]
        resolve += ["--python-version", version, "--output-file", str(found), "pyproject.toml"]
        subprocess.run(resolve, cwd=bootstrap.PROJECT, env=variables, stdout=subprocess.DEVNULL, check=True)
        steps.append(("-r", str(found)))
    for what in (*steps, ("-e", str(bootstrap.PROJECT))):
        command = [*install, "--build-constraints", str(bootstrap.LOCK), *what]
        subprocess.run(command, cwd=bootstrap.PROJECT, env=variables, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], lowest="--lowest" in sys.argv, kafka="--kafka" in sys.argv))
