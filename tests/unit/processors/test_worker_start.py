"""The command that starts one worker: a crash in C code prints where it happened."""

import signal
import subprocess
import sys

DIES_IN_C = """
import os, signal
from holdfast.processors import __main__ as worker

def find_processor(*of):
    os.kill(os.getpid(), signal.SIGSEGV)

worker.find_processor = find_processor
worker.main(["--processor", "orders"])
"""


def test_a_worker_that_dies_in_c_says_where() -> None:
    ended = subprocess.run([sys.executable, "-c", DIES_IN_C], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert "in find_processor" in ended.stderr
