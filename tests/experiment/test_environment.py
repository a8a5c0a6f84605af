"""What the fingerprint of a federation notices, and which weights a run starts from."""

from dataclasses import replace
from pathlib import Path

import pytest

from feddiverse.data import open_federation
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config
from feddiverse.experiment.environment import describe, fingerprint, refuse_other_inputs
from feddiverse.experiment.opening import starting_weights


def test_the_fingerprint_is_that_of_who_holds_what() -> None:
    federation = open_federation("digits-gsc", 0)
    again = fingerprint(open_federation("digits-gsc", 0))
    swapped = [federation.client_ids[1], federation.client_ids[0], *federation.client_ids[2:]]
    recoloured = [1 - federation.client_a[0], *federation.client_a[1:]]
    others = {
        fingerprint(open_federation("digits-gsc", 1)),
        fingerprint(open_federation("gci:digits", 0)),
        fingerprint(replace(federation, client_ids=swapped)),
        fingerprint(replace(federation, client_a=recoloured)),
        fingerprint(replace(federation, test_ids=federation.test_ids[:-1])),
    }
    assert fingerprint(federation) == again
    assert len(others) == 5
    assert again not in others


def test_weights_are_named_by_content(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"abc")
    federation = open_federation("digits-gsc", 0)
    before = describe(federation, weights)
    assert before["checkpoint"] == {
        "name": "weights.pt",
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    assert describe(federation, None)["checkpoint"] is None
    refuse_other_inputs(before, describe(federation, weights))
    weights.write_bytes(b"abd")
    with pytest.raises(UserError, match="The starting weights changed since this run began"):
        refuse_other_inputs(before, describe(federation, weights))


def test_where_weights_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = tmp_path / "fetched.pt"
    monkeypatch.setattr("feddiverse.data.sources.find", lambda name: fetched)
    (tmp_path / "mine.pt").touch()
    assert starting_weights(Config(model="mobilenet")) == fetched
    assert starting_weights(Config(model="mobilenet", checkpoint="none")) is None
    assert starting_weights(Config(model="mobilenet", checkpoint=str(tmp_path / "mine.pt"))) == tmp_path / "mine.pt"
    assert starting_weights(Config(model="cnn")) is None
