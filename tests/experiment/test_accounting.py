"""What a run's noise is worth, and what it refuses to call private."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import feddiverse as fd
from feddiverse.errors import UserError
from feddiverse.experiment.accounting import epsilon_of_updates, spent
from feddiverse.experiment.config import Config, from_mapping
from feddiverse.experiment.opening import check_privacy, privacy_of
from feddiverse.messages import AttributeTriplet, LabelCounts, Loss, PaperTriplet, Reply, Train
from feddiverse.server.meter import Meter
from feddiverse.server.privacy import Privacy


def exact_epsilon(deviation: float, delta: float) -> float:
    """Of the Gaussian mechanism of sensitivity 1 (Balle and Wang, ICML 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * deviation), epsilon * deviation
        return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) - delta)

    return float(brentq(excess, 0, 500))


@pytest.mark.parametrize(("noise", "updates"), [(4.0, 1), (20.0, 30), (8.0, 100)])
def test_the_accountant_is_near_the_exact_value_and_never_below(noise: float, updates: int) -> None:
    """n updates with Gaussian noise are one with noise √n times smaller; two updates are up to two radii apart."""
    exact = exact_epsilon(noise / 2 / math.sqrt(updates), 1e-5)
    assert exact <= epsilon_of_updates(noise, updates, 1e-5) <= 1.25 * exact


def test_a_run_tells_what_the_most_asked_client_told() -> None:
    history = [
        {"selected": [0, 1, 2], "tables": {"0": 1, "1": 1}},
        {"selected": [1, 2]},
        {"selected": [1], "tables": {"1": 1}},
    ]
    told = spent(Config(privacy_epsilon=0.5, privacy_clip=1.0, privacy_noise=10.0, secure_sums=True), history)
    assert told["tables"] == {"epsilon": 1.0, "tables_of_a_client": 2}
    assert told["updates"]["updates_of_a_client"] == 3
    assert told["updates"]["epsilon"] == pytest.approx(epsilon_of_updates(10.0, 3, 1e-5))
    assert spent(Config(), history) == {}
    assert spent(Config(secure_sums=True), history) == {"secure_sums": True, "tables": None, "updates": None}


def test_a_compressed_update_is_an_update() -> None:
    """HCSFed has every client send one before its first choice: who is then chosen has told two."""
    result = fd.train(
        "digits-gsc", selector="hcsfed", rounds=1, workers=1, privacy_clip=1.0, privacy_noise=3.0, hcsfed_rate=0.001
    )
    record = result.history[0]
    assert set(record["updates"].values()) == {1, 2}
    assert {int(k) for k, number in record["updates"].items() if number == 2} == set(record["selected"])
    told = result.summary["privacy"]["updates"]
    assert told["updates_of_a_client"] == 2
    assert told["epsilon"] == pytest.approx(epsilon_of_updates(3.0, 2, told["delta"]))


def test_keys_may_be_written_with_a_dot_or_as_a_table() -> None:
    for given in ({"privacy.epsilon": 2}, {"privacy": {"epsilon": 2}}, {"privacy_epsilon": 2}):
        assert from_mapping(given).privacy_epsilon == 2.0
    with pytest.raises(UserError, match="Unknown key 'privacy_epsilom'"):
        from_mapping({"privacy.epsilom": 2})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"privacy_epsilon": 1.0, "selector": "feddiverse"}, "set secure_sums to true"),
        ({"privacy_epsilon": 1.0, "selector": "feddiverse", "estimator": "paper"}, "choose the estimator consensus"),
        ({"privacy_epsilon": 1.0, "rebalance": True}, "set secure_sums to true"),
        ({"privacy_noise": 1.0}, "set privacy_clip as well"),
    ],
)
def test_what_would_protect_nothing_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_privacy(Config(**settings))


def test_what_protects_something_is_not_refused() -> None:
    check_privacy(Config(privacy_epsilon=1.0, selector="feddiverse", secure_sums=True, rebalance=True))
    check_privacy(Config(privacy_epsilon=1.0, selector="feddiverse", estimator="oracle"))
    check_privacy(Config(privacy_epsilon=1.0, selector="fed_cbs", estimator="paper"))


def test_every_question_gets_its_noise_whoever_asks() -> None:
    privacy = Privacy(epsilon=2.0, clip=3.0, noise=0.5)
    assert privacy.applied(LabelCounts(0, 1)) == LabelCounts(0, 1, epsilon=2.0)
    assert privacy.applied(LabelCounts(0, 1, epsilon=0.5)) == LabelCounts(0, 1, epsilon=0.5), "the stricter one"
    trained = privacy.applied(Train(0, 1))
    assert isinstance(trained, Train)
    assert (trained.clip, trained.noise) == (3.0, 0.5)
    for question in (Loss(0, 1), PaperTriplet(0, 1)):
        with pytest.raises(UserError, match="privacy_epsilon is 2, but"):
            privacy.applied(question)
        assert Privacy().applied(question) is question
    arrays = {name: np.zeros((1, 1), np.float32) for name in ("directions", "origin", "centres", "shares")}
    asked = privacy.applied(AttributeTriplet(0, 1, **arrays))
    assert isinstance(asked, AttributeTriplet)
    assert asked.epsilon == 2.0


def test_a_run_with_everything_on_says_so() -> None:
    result = fd.train(
        "digits-gsc", selector="feddiverse", rounds=2, workers=1, secure_sums=True,
        privacy_epsilon=8.0, privacy_clip=1.0, privacy_noise=0.01,
    )  # fmt: skip
    assert result.summary["privacy"]["tables"] == {"epsilon": 8.0, "tables_of_a_client": 1}
    assert result.summary["privacy"]["updates"]["updates_of_a_client"] == 2
    assert result.summary["privacy"]["secure_sums"] is True
    assert result.history[0]["train_loss"] is None, "losses stay with the clients"
    traffic = result.history[1]["traffic"]
    assert {"advertise_keys", "share_keys", "unmask", "feature_moments"} <= set(traffic)
    assert len(result.triplets["triplets"]) == 24
    assert privacy_of(Config()).sums is None


def test_the_door_lets_noisy_updates_in_without_their_loss() -> None:
    class OneClient:
        clients: ClassVar[dict[int, int]] = {0: 10}

        def ask(self, task: Train, theta: Any, clients: Any) -> Iterator[Reply]:
            yield Reply(0, 10, np.zeros(3, np.float32), {"steps": 1.0})

    meter = Meter(OneClient(), Privacy(clip=1.0, noise=1.0))
    (reply,) = meter.ask(Train(0, 1), np.zeros(3, np.float32), [0])
    assert reply.failure is None
