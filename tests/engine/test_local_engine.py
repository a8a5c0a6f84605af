"""The local engine with real clients: the same bits on any number of workers, and evaluation against a plain loop."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from engine_fakes import NUM_WEIGHTS, SPEC, noise_federation

from feddiverse.data import open_federation
from feddiverse.engine import local
from feddiverse.engine.local import LocalEngine
from feddiverse.engine.worker import Worker
from feddiverse.errors import RunError, UserError
from feddiverse.messages import LabelCounts, Train
from feddiverse.models import ModelSpec, build, initial_theta

TASK = Train(seed=5, round=3, lr=0.02)
CLIENTS = [7, 0, 23, 4, 12]


@pytest.fixture(scope="module")
def digits():
    federation = open_federation("digits-gsc", seed=0)
    source = federation.source
    spec = ModelSpec("cnn", federation.num_classes, source.shape, source.mean, source.std)
    return federation, spec, initial_theta(spec, seed=0)


@pytest.fixture(scope="module")
def expected(digits):
    federation, spec, theta = digits
    with LocalEngine(federation, spec, 1, "cpu") as engine:
        return list(engine.ask(TASK, theta, CLIENTS)), engine.evaluate(theta)


@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": 4}, {"in_process": True}])
def test_the_same_bits_however_the_work_is_spread(digits, expected, how):
    federation, spec, theta = digits
    torch.ones(400, 400) @ torch.ones(400, 400)  # torch's own threads, if it has any, must not trouble forked workers
    before = theta.copy()
    with LocalEngine(federation, spec, device="cpu", **how) as engine:
        for _ in range(2):  # the second time from a used model and cached data
            replies = list(engine.ask(TASK, theta, CLIENTS))
            for reply, known in zip(replies, expected[0], strict=True):
                assert reply.failure is None
                assert (reply.client, reply.num_examples, reply.metrics) == (
                    known.client,
                    federation.sizes[known.client],
                    known.metrics,
                )
                assert reply.vector.tobytes() == known.vector.tobytes()
            np.testing.assert_array_equal(engine.evaluate(theta), expected[1])
    np.testing.assert_array_equal(theta, before)


def test_evaluation_counts_what_a_plain_loop_counts(digits, expected):
    federation, spec, theta = digits
    test = federation.test()
    model = build(spec)
    model.load(theta)
    model.module.eval()
    pixels = (torch.from_numpy(test.x) / 255 - spec.mean[0]) / spec.std[0]
    with torch.no_grad():
        right = model.module(pixels).argmax(1).numpy() == test.y
    for y in range(2):
        for a in range(2):
            group = (test.y == y) & (test.a == a)
            assert expected[1][1, y, a] == group.sum()
            assert abs(expected[1][0, y, a] - right[group].sum()) <= 1  # a tie may fall either way by rounding
    assert expected[1].dtype == np.int64


def test_clients_nobody_asks_are_never_read():
    federation = noise_federation(num_clients=50)
    with LocalEngine(federation, SPEC, device="cpu", in_process=True) as engine:
        theta = np.zeros(NUM_WEIGHTS, np.float32)
        for _ in range(3):
            assert all(r.failure is None for r in engine.ask(LabelCounts(0, 1), theta, [3, 30]))
        assert federation.source.reads == 2
        assert len(engine.clients) == 50


def test_the_cache_keeps_what_was_used_last_within_its_bytes():
    federation = noise_federation(num_clients=5, size=10)
    client_bytes = 10 * (3 * 8 * 8 + 8 + 8)
    worker = Worker(federation, None, lambda task, theta, client, samples, model: client, 2 * client_bytes)
    reads = []
    for client in (0, 1, 0, 2, 0, 1):  # 2 takes the place of 1, not of 0; then 1 is read again
        worker.answer(LabelCounts(0, 1), None, client)
        reads.append(federation.source.reads)
    assert reads == [1, 2, 2, 3, 3, 4]
    tiny = Worker(federation, None, lambda task, theta, client, samples, model: len(samples), 1)
    assert tiny.answer(LabelCounts(0, 1), None, 3) == 10  # larger than the cache, and still answered


def test_a_test_set_that_cannot_be_evaluated_is_an_error(monkeypatch):
    federation = noise_federation()
    monkeypatch.setattr(local, "TEST_CHUNK", 100)
    federation.test_ids[250] = 10**6
    with LocalEngine(federation, SPEC, 2, "cpu") as engine:
        with pytest.raises(RunError, match="test set could not be evaluated"):
            engine.evaluate(np.zeros(NUM_WEIGHTS, np.float32))
        federation.test_ids[250] = 0  # the workers have their own copy: a new question would still fail
        assert list(engine.ask(LabelCounts(0, 1), np.zeros(NUM_WEIGHTS, np.float32), [1]))


@pytest.mark.parametrize("how", [{"workers": 1}, {"in_process": True}])
def test_questions_that_make_no_sense(how):
    with LocalEngine(noise_federation(), SPEC, device="cpu", **how) as engine:
        with pytest.raises(RunError, match="no client 6 among the 6"):
            engine.ask(TASK, np.zeros(NUM_WEIGHTS, np.float32), [0, 6])
        with pytest.raises(RunError, match="87,810 weights"):
            engine.ask(TASK, np.zeros(1, np.float32), [0])
        with pytest.raises(RunError, match="87,810 weights"):
            engine.evaluate(np.zeros(1, np.float32))
        assert list(engine.ask(TASK, np.zeros(NUM_WEIGHTS, np.float32), [])) == []
    with pytest.raises(RuntimeError, match="closed"):
        list(engine.ask(TASK, np.zeros(NUM_WEIGHTS, np.float32), [0]))
    with pytest.raises(UserError, match="-1 workers"):
        LocalEngine(noise_federation(), SPEC, -1)


def test_working_in_this_process_gives_torch_its_threads_back():
    threads = torch.get_num_threads()
    with LocalEngine(noise_federation(), SPEC, device="cpu", in_process=True):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


def test_importing_the_engine_does_not_import_torch():
    program = "import sys, feddiverse.engine.local; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "False"
