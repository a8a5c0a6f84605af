"""Worker processes: order, bounds, deaths and leftovers. Clients are fakes; the deaths are real."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from engine_fakes import NUM_WEIGHTS, SPEC, Shift, noise_federation, once, shifted
from threadpoolctl import threadpool_info

from feddiverse.engine import pool, shared, worker
from feddiverse.engine.local import LocalEngine
from feddiverse.engine.pool import Patience
from feddiverse.messages import Reply

THETA = np.zeros(NUM_WEIGHTS, np.float32)
TASK = Shift(seed=0, round=1)


def engine_of(answer, workers=2, patience=None, **federation):
    return LocalEngine(noise_federation(**federation), SPEC, workers, "cpu", answer=answer, patience=patience)


def values(replies):
    return [None if reply.vector is None else float(reply.vector[0]) for reply in replies]


def test_a_worker_has_one_thread():
    """NumPy's BLAS would start one a core in every worker."""

    def threads(task, theta, client, samples, model):
        counts = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
        return Reply(client, vector=np.array([max(counts)], np.float32))

    with engine_of(threads) as engine:
        assert values(engine.ask(TASK, THETA, [0, 1])) == [1, 1]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("spare_bytes", [0, 64 << 20])
def test_replies_keep_the_order_asked_whoever_is_slow(workers, spare_bytes, monkeypatch):
    monkeypatch.setattr(shared, "SPARE_BYTES", spare_bytes)
    slow_first = shifted(lambda client: time.sleep(0.1 if client in (9, 4) else 0.002))
    clients = [9, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    with engine_of(slow_first, workers, num_clients=10) as engine:
        for theta in (THETA, THETA + 100):
            replies = list(engine.ask(TASK, theta, clients))
            assert [reply.client for reply in replies] == clients
            assert values(replies) == [theta[0] + client for client in clients]


def test_a_slow_consumer_holds_up_the_workers(monkeypatch, tmp_path):
    """Four slots: no more than four replies wait to be taken, so that memory has a bound."""
    monkeypatch.setattr(shared, "SPARE_BYTES", 0)
    with engine_of(shifted(lambda client: (tmp_path / str(client)).touch()), 2, num_clients=12) as engine:
        replies = engine.ask(TASK, THETA, range(12))
        for taken in range(1, 13):
            assert next(replies).client == taken - 1
            time.sleep(0.05)
            assert len(list(tmp_path.iterdir())) <= taken + 4


def test_a_reply_stays_what_it_was_when_its_slot_is_used_again(monkeypatch):
    monkeypatch.setattr(shared, "SPARE_BYTES", 0)
    with engine_of(shifted(), 1, num_clients=9) as engine:
        assert values(list(engine.ask(TASK, THETA, range(9)))) == list(range(9))


def test_vectors_that_fit_no_slot_arrive_all_the_same():
    vectors = [np.arange(2 * NUM_WEIGHTS, dtype=np.float32), np.full((2, 3), 1 / 3), np.zeros(0, np.float32), None]
    with engine_of(lambda task, theta, client, samples, model: Reply(client, vector=vectors[client])) as engine:
        for reply, vector in zip(engine.ask(TASK, THETA, range(4)), vectors, strict=True):
            assert (reply.vector is None) == (vector is None)
            if vector is not None:
                np.testing.assert_array_equal(reply.vector, vector)
                assert reply.vector.dtype == vector.dtype


def test_a_client_whose_worker_dies_is_asked_once_more(tmp_path):
    def die_once(client):
        if client in (1, 4) and once(tmp_path, client):
            os.kill(os.getpid(), signal.SIGKILL)

    with engine_of(shifted(die_once)) as engine:
        assert values(engine.ask(TASK, THETA, range(6))) == [0, 1, 2, 3, 4, 5]
        assert 1 <= len(engine.process_ids) <= 2  # the last job may go to the one who lives
        assert {path.name for path in tmp_path.iterdir()} == {"1", "4"}


def test_a_client_whose_worker_dies_twice_has_failed_and_no_other(tmp_path):
    def die(client):
        if client == 2:
            (tmp_path / str(time.monotonic_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    with engine_of(shifted(die)) as engine:
        for _ in range(2):
            replies = list(engine.ask(TASK, THETA, [2, 0, 1, 3]))
            assert values(replies) == [None, 0, 1, 3]
            assert "died 2 times" in replies[0].failure
            assert [reply.failure for reply in replies[1:]] == [None] * 3
    assert len(list(tmp_path.iterdir())) == 4  # two rounds of two attempts


@pytest.mark.parametrize(("retries", "expected"), [(0, [0, None, 2]), (3, [0, 1, 2])])
def test_how_often_a_client_is_asked_again_is_a_setting(retries, expected, tmp_path):
    def die_three_times(client):
        if client == 1 and len(list(tmp_path.iterdir())) < 3:
            (tmp_path / str(time.monotonic_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    with engine_of(shifted(die_three_times), patience=Patience(retries=retries)) as engine:
        replies = list(engine.ask(TASK, THETA, range(3)))
        assert values(replies) == expected
        assert [reply.lost for reply in replies] == [False, retries == 0, False]


def listening(monkeypatch, seconds):
    """Have the pool listen often, each time as if `seconds(pool)` had passed: no clock decides what a test sees."""
    listen = pool.Pool._listen
    monkeypatch.setattr(pool, "SECONDS_PER_BEAT", 0.02)
    monkeypatch.setattr(worker, "SECONDS_PER_BEAT", 0.02)
    monkeypatch.setattr(pool.Pool, "_listen", lambda self, _: listen(self, seconds(self)))


def test_a_worker_that_is_stopped_is_told_of_and_replaced(tmp_path, monkeypatch, caplog):
    def stop_once(client):
        if client == 1 and once(tmp_path, client):
            os.kill(os.getpid(), signal.SIGSTOP)

    def long_if_stopped(self):
        stopped = [psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in self.process_ids]
        return 100.0 if any(stopped) else 0.0

    listening(monkeypatch, long_if_stopped)
    with engine_of(shifted(stop_once), 1, patience=Patience(timeout=200.0)) as engine, caplog.at_level("WARNING"):
        assert values(engine.ask(TASK, THETA, range(4))) == [0, 1, 2, 3]
    assert any("shows no sign of life for" in line and "replaced after 200 s" in line for line in caplog.messages)


def test_a_slow_client_shows_signs_of_life(tmp_path, monkeypatch, caplog):
    """An hour passes between each two beats, and nobody minds: there was a beat."""
    listened = []

    def after_a_beat(self):
        (only,) = self._workers
        while self._shared.beats[only.place] == only.beats:
            time.sleep(0.01)
        listened.append(only.beats)
        if len(listened) == 3:
            (tmp_path / "enough").touch()
        return 3600.0

    def slow(client):
        while not (tmp_path / "enough").exists():
            time.sleep(0.01)

    listening(monkeypatch, after_a_beat)
    with engine_of(shifted(slow), 1, patience=Patience(timeout=1.0)) as engine, caplog.at_level("WARNING"):
        assert values(engine.ask(TASK, THETA, range(1))) == [0]
    assert not caplog.messages
    assert len(set(listened)) == len(listened) >= 3


def test_workers_killed_from_outside_are_replaced():
    with engine_of(shifted(lambda client: time.sleep(0.05))) as engine:
        assert values(engine.ask(TASK, THETA, range(6))) == list(range(6))
        for pid in engine.process_ids:  # while idle
            os.kill(pid, signal.SIGKILL)
        replies = engine.ask(TASK, THETA, range(6))
        first = next(replies)
        os.kill(engine.process_ids[0], signal.SIGKILL)  # while working
        assert values([first, *replies]) == list(range(6))


def test_an_iterator_closed_early_leaves_a_usable_engine():
    """Nobody waits for the hours that the others would take: the test itself would not live to see it."""
    with engine_of(shifted(lambda client: time.sleep(3600 if client else 0))) as engine:
        replies = engine.ask(TASK, THETA, range(6))
        assert next(replies).client == 0
        replies.close()
        assert values(engine.ask(TASK, THETA, [0, 0, 0])) == [0, 0, 0]


@pytest.mark.parametrize("num_jobs", [2, 6])
def test_a_closed_engine_gives_no_further_reply(num_jobs):
    """Whether it has arrived already, is on its way (which was waited for without end), or is not begun."""
    engine = engine_of(shifted())
    replies = engine.ask(TASK, THETA, range(num_jobs))
    next(replies)
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(replies)


def test_one_question_at_a_time_and_none_after_the_end():
    engine = engine_of(shifted())
    replies = engine.ask(TASK, THETA, range(6))
    next(replies)
    with pytest.raises(RuntimeError, match="still being answered"):
        next(engine.ask(TASK, THETA, range(6)))
    engine.close()
    engine.close()
    assert engine.process_ids == []
    with pytest.raises(RuntimeError, match="closed"):
        list(replies)
    with pytest.raises(RuntimeError, match="closed"):
        list(engine.ask(TASK, THETA, [0]))


def test_a_client_whose_data_cannot_be_read_fails_alone(monkeypatch):
    federation = noise_federation()
    federation.client_ids[3] = np.array([10**6])
    with LocalEngine(federation, SPEC, 2, "cpu", answer=shifted()) as engine:
        replies = list(engine.ask(TASK, THETA, range(6)))
    assert values(replies) == [0, 1, 2, None, 4, 5]
    assert "data cannot be read" in replies[3].failure


def test_vectors_do_not_travel_through_pipes():
    """Counted, not timed: a reply costs the pipe a few hundred bytes however long its vector is.

    The limit leaves room for what else this process reads and writes meanwhile, such as pytest-xdist's messages.
    """
    with engine_of(shifted()) as engine:
        list(engine.ask(TASK, THETA, range(6)))
        before = psutil.Process().io_counters()
        replies = list(engine.ask(TASK, THETA, range(6)))
        after = psutil.Process().io_counters()
    assert sum(reply.vector.nbytes for reply in replies) == 6 * 4 * NUM_WEIGHTS
    assert after.read_chars - before.read_chars < 4 * NUM_WEIGHTS
    assert after.write_chars - before.write_chars < 4 * NUM_WEIGHTS


def test_workers_whose_thread_has_ended_are_replaced():
    """To Linux a worker's parent is the thread that forked it, and workers die with their parent."""
    with engine_of(shifted()) as engine:
        thread = threading.Thread(target=lambda: list(engine.ask(TASK, THETA, range(6))))
        thread.start()
        thread.join()
        assert values(engine.ask(TASK, THETA, range(6))) == list(range(6))


def named_mappings():
    """Shared memory of this process that has a name, and so could outlive it."""
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line}


def test_nothing_is_left_behind():
    us = psutil.Process()
    with engine_of(shifted()) as engine:  # what is imported and opened only once
        list(engine.ask(TASK, THETA, range(6)))
    descriptors, named = us.num_fds(), named_mappings()
    for _ in range(3):
        with engine_of(shifted(), 3) as engine:
            list(engine.ask(TASK, THETA, range(6)))
            assert len(us.children()) == 3
            assert named_mappings() == named
    assert us.children() == []
    assert us.num_fds() == descriptors


def test_workers_start_only_when_there_is_work_for_them():
    with engine_of(shifted(), 64) as engine:
        assert engine.process_ids == []
        list(engine.ask(TASK, THETA, [1, 2, 3]))
        assert len(engine.process_ids) <= 3
