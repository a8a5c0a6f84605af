"""The whole program interrupted or killed: it ends soon and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SOON = 120  # seconds: a blink on an idle machine; told apart from the quarter of an hour that workers would take

# A process whose parent ignores Ctrl-C (a background job, some CI runners) ignores it too, as a program under nohup
# must; these tests want what a terminal gives.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import time
import numpy as np
from engine_fakes import NUM_WEIGHTS, SPEC, Shift, noise_federation, shifted
from feddiverse.engine.local import LocalEngine

theta = np.zeros(NUM_WEIGHTS, np.float32)
with LocalEngine(noise_federation(), SPEC, 2, "cpu", answer=shifted(lambda client: time.sleep(999 * client))) as engine:
    for reply in engine.ask(Shift(seed=0, round=1), theta, range(6)):
        print(*engine.process_ids, flush=True)
"""


@pytest.fixture
def program():
    """A process in its own process group, two of its workers busy for a quarter of an hour, and their ids."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
            assert len(workers) == 2
            yield process, workers
        finally:
            process.kill()


def assert_gone(workers):
    deadline = time.monotonic() + SOON
    while any(is_alive(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # dead, and not yet noticed by whoever inherited it
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_waits_for_no_worker(program):
    process, workers = program
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone in the group
    assert process.wait(timeout=SOON) == -signal.SIGINT
    assert_gone(workers)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_survives_its_parent(program, signal_number):
    process, workers = program
    process.send_signal(signal_number)
    process.wait(timeout=SOON)
    assert_gone(workers)
