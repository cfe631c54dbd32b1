"""Measures one process: its own and the broker's CPU and memory, and how busy the rest of the machine was.

CPU time is that of the whole process, including its start and all its threads (also librdkafka's and the JVM's).
Samples during the run give the CPU of a part of it. Samples and peak memory come from /proc, so only Linux has them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.contenders import parse_last

SAMPLE_EVERY_S = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class RunWrong(Exception):
    """A run failed, or ended with wrong outputs."""


@dataclass(slots=True)
class Usage:
    """The resources that one process used. A sample is (seconds since the epoch, CPU seconds until then)."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    broker_cpu_s: float
    #: The average number of cores that other processes used during the measurement. The bench itself is not counted.
    others_cores: float
    told: Mapping[str, Any]
    samples: list[tuple[float, float]] = field(default_factory=list)

    def cpu_between(self, start: float, end: float) -> float | None:
        """The CPU seconds between two moments in seconds since the epoch; None without samples."""
        if len(self.samples) < 2:
            return None
        return self._cpu_at(end) - self._cpu_at(start)

    def _cpu_at(self, moment: float) -> float:
        place = bisect_left(self.samples, (moment, 0.0))
        if place == 0:
            return self.samples[0][1]
        if place == len(self.samples):
            return self.samples[-1][1]
        (before, used), (after, used_after) = self.samples[place - 1], self.samples[place]
        return used + (used_after - used) * (moment - before) / max(after - before, 1e-9)


def run_measured(command: Sequence[str], environment: Mapping[str, str], broker_pid: int, limit_s: float) -> Usage:
    """Run a command to its end, and measure it.

    Raises:
        RunWrong: It took too long, or its exit code was not 0.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        broker_before, machine_before, own_before = _cpu_of(broker_pid), _machine_cpu(), sum(os.times()[:2])
        began = time.monotonic()
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
        )
        try:
            usage = _watch(process, began + limit_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        usage.wall_s = time.monotonic() - began
        usage.broker_cpu_s = _cpu_of(broker_pid) - broker_before
        own = sum(os.times()[:2]) - own_before
        busy = _machine_cpu() - machine_before - usage.cpu_s - usage.broker_cpu_s - own
        usage.others_cores = max(0.0, busy / usage.wall_s)
        out.seek(0)
        errors.seek(0)
        said = out.read()
        if process.returncode != 0:
            words = (said + errors.read()).strip()[-2_000:]
            raise RunWrong(f"{' '.join(command[-15:])} ended with exit code {process.returncode}: {words}")
    usage.told = parse_last(said)
    return usage


def _watch(process: subprocess.Popen[bytes], deadline: float) -> Usage:
    samples: list[tuple[float, float]] = []
    peak = 0
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return Usage(0.0, used.ru_utime + used.ru_stime, peak or used.ru_maxrss * 1024, 0.0, 0.0, {}, samples)
        if time.monotonic() > deadline:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise RunWrong(f"{' '.join(map(str, process.args[-15:]))} was ended: it took too long")
        samples.append((time.time(), _cpu_of(process.pid)))
        # Read the peak memory while the process lives, because Linux' rusage also counts the memory of the parent
        # process.
        peak = max(peak, peak_of(process.pid))
        time.sleep(SAMPLE_EVERY_S)


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _machine_cpu() -> float:
    """The seconds that all cores together were busy since the machine started."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, _ = fields
    return (user + nice + system + interrupts + soft) / _TICKS


def peak_of(pid: int) -> int:
    """The peak memory of a process so far, in bytes; 0 if it can't be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(line.split()[1]) * 1024
