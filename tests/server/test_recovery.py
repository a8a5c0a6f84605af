"""The attack that secure sums are for: a client with one sample of a class, and a server that looks for its picture."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from feddiverse import secagg
from feddiverse.client import tasks
from feddiverse.client.consensus import projected
from feddiverse.client.evaluation import features
from feddiverse.data import open_federation
from feddiverse.data.federation import Samples
from feddiverse.messages import TOTAL, FeatureMoments, Reply, Summed, Task
from feddiverse.models import ModelSpec, build, initial_theta
from feddiverse.server.secagg import SecureSums

FEDERATION = open_federation("digits-gsc", 0)
SPEC = ModelSpec("cnn", 2, FEDERATION.source.shape, FEDERATION.source.mean, FEDERATION.source.std)
THETA = initial_theta(SPEC, 0)
TASK = FeatureMoments(0, 1, 16)
VICTIM = 0


class Server:
    """Sees all that clients send, and knows pictures that they might have."""

    def __init__(self) -> None:
        self.model = build(SPEC)
        self.pictures = FEDERATION.client(9)
        alone = np.flatnonzero(self.pictures.y == 1)[5]  # the victim's only picture of class 1
        self.right = int(alone)
        self.samples = {k: FEDERATION.client(k) for k in range(1, 6)}
        others = FEDERATION.client(VICTIM)
        keep = others.y == 0
        x, y = np.concatenate([others.x[keep], self.pictures.x[[alone]]]), np.append(others.y[keep], 1)
        self.samples[VICTIM] = Samples(x, y, None)
        self.sent: list[tuple[Task, Reply]] = []

    def ask(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        for k in clients:
            reply = tasks.answer(task.of(k), THETA, k, self.samples[k], self.model)
            self.sent.append((task, reply))
            yield reply

    def sums_of_class_1(self, moments: np.ndarray) -> np.ndarray:
        return moments[4 + 16 : 4 + 2 * 16]

    def distances(self, features_seen: np.ndarray) -> np.ndarray:
        known = projected(TASK, features(THETA, self.pictures, self.model))
        return np.linalg.norm(known - features_seen, axis=1)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def test_plain_sums_give_the_picture_away(server: Server) -> None:
    (reply,) = server.ask(TASK, [VICTIM])
    assert reply.vector is not None
    distances = server.distances(server.sums_of_class_1(reply.vector))
    assert distances.argmin() == server.right
    assert distances[server.right] < 1e-5 * np.sort(distances)[1], "there is no doubt"


def test_secure_sums_do_not(server: Server) -> None:
    server.sent.clear()
    *failures, total = SecureSums().ask(TASK, list(server.samples), server.ask)
    assert not failures
    assert total.client == TOTAL
    assert total.vector is not None
    assert total.vector[2:4].sum() == sum(len(samples) for samples in server.samples.values())
    in_total = server.distances(server.sums_of_class_1(total.vector) / total.vector[3])
    assert in_total[server.right] > 0.05 * in_total.max(), "one picture among those of six clients"
    own = [reply for task, reply in server.sent if reply.client == VICTIM and isinstance(task, Summed)]
    assert len(own) == 1
    assert own[0].vector is None
    numbers = secagg.decode(np.frombuffer(own[0].payload, "<u8"), 32)
    spread = server.distances(server.sums_of_class_1(numbers))
    # Masked numbers lie anywhere in ±2³¹: seen from there, every picture is as far as any other.
    assert np.median(np.abs(numbers)) > 2.0**26
    assert np.ptp(spread) < 1e-4 * spread.min()
