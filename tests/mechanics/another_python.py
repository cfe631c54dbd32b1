"""Runs the quick tests on another Python version, in a separate environment below ``build/``.

``make quick-on PYTHON=python3.13``, where PYTHON is a program's name or path. Packages have the versions of
requirements.lock. With ``LOWEST=1``, the packages that pyproject.toml names have the lowest versions that it allows.
"""

from __future__ import annotations

import subprocess
import sys

from holdfast.infra.setup import bootstrap


def main(python: str, *, lowest: bool) -> int:
    """Installs the environment and runs the tests; returns the exit code of pytest."""
    ask = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    environment = bootstrap.PROJECT / "build" / f"python-{version}{'-lowest' if lowest else ''}"
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
    command = [str(environment / "bin" / "python"), "-m", "pytest", "tests", "--tier", "quick"]
    command += ["--dist", "loadfile", "--no-loadscope-reorder", "--numprocesses", "2"]
    return subprocess.call(command, cwd=bootstrap.PROJECT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], lowest="--lowest" in sys.argv))
