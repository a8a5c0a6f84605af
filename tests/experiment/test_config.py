"""Every mistake in a config is told with the key named; what is written is read back."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feddiverse.errors import UserError
from feddiverse.experiment.config import (
    Config,
    differences,
    from_mapping,
    parse_assignments,
    read_toml,
    settings,
    to_toml,
)


def test_the_papers_federations_get_the_papers_settings() -> None:
    config = Config(federation="cmnist-gsc")
    assert (config.rounds, config.lr, config.model, config.evaluate_every) == (200, 0.001, "mobilenet", 10)
    assert (config.batch_size, config.momentum, config.epochs, config.weight_decay) == (28, 0.9, 1, 0.0)
    assert (config.server_momentum, config.server_lr, config.weighting) == (0.95, 0.1, "equal")
    assert (config.gce_q, config.bias_steps, config.attribute_steps, config.pretraining_rounds) == (0.3, 50, 10, 0)
    assert Config(federation="cmnist-gsc", selector="feddiverse").pretraining_rounds == 1
    assert (config.fedpns_alpha, config.fedpns_beta, config.hcsfed_clusters, config.hcsfed_rate) == (2, 0.7, 3, 1e-5)


@pytest.mark.parametrize("federation", ["digits-gsc", "gai:digits"])
def test_digits_get_quick_ones(federation: str) -> None:
    config = Config(federation=federation)
    assert (config.rounds, config.lr, config.model, config.evaluate_every) == (100, 0.02, "cnn", 5)
    assert Config(federation=federation, rounds=7, lr=1).rounds == 7


def test_fednova_weighs_by_samples_and_adaptive_servers_step_carefully() -> None:
    assert Config(aggregator="fednova").weighting == "samples"
    assert Config(aggregator="fednova", weighting="equal").weighting == "equal"
    assert Config(aggregator="fedadam").server_lr == 0.01


@pytest.mark.parametrize(
    ("given", "aggregator", "prox_mu"),
    [
        ({"aggregator": "fedprox"}, "fedavg", 0.1),
        ({"optimizer": "fedavgm+fedprox"}, "fedavgm", 0.1),
        ({"aggregator": "fedprox", "prox_mu": 0.5}, "fedavg", 0.5),
        ({"aggregator": "fedadam", "prox_mu": 0.5}, "fedadam", 0.5),
        ({"optimizer": "fedadam"}, "fedadam", 0.0),
        ({}, "fedavgm", 0.0),
    ],
)
def test_aggregator_and_objective_are_two_axes_with_the_papers_names_for_both(
    given: dict[str, object], aggregator: str, prox_mu: float
) -> None:
    config = from_mapping(given)
    assert (config.aggregator, config.prox_mu) == (aggregator, prox_mu)


@pytest.mark.parametrize(("optimizer", "prox_mu"), [("fedavgm", 0.0), ("fedprox", 0.3)])
@pytest.mark.parametrize(("selector", "t0"), [("uniform", 0), ("feddiverse", 4)])
def test_a_whole_config_of_an_older_version_means_what_it_meant(
    optimizer: str, prox_mu: float, selector: str, t0: int
) -> None:
    """It held µ and T0 whether they were used or not."""
    old = {key: value for key, value in Config().plain().items() if key != "aggregator"}
    used = {"optimizer": optimizer, "prox_mu": 0.3, "selector": selector, "pretraining_rounds": 4}
    config = from_mapping({**old, **used})
    assert (config.prox_mu, config.pretraining_rounds) == (prox_mu, t0)


def test_parameters_of_parts_come_as_tables_or_dotted_and_are_written_as_tables(tmp_path: Path) -> None:
    table = from_mapping({"selector": {"name": "mine:Mine", "temperature": 3, "coverage": 1.5}})
    dotted = from_mapping(parse_assignments(["selector=mine:Mine", "selector.temperature=3", "selector.coverage=1.5"]))
    assert table == dotted
    assert hash(table) == hash(dotted)
    assert (table.selector, table.parameters("selector")) == ("mine:Mine", {"temperature": 3})
    assert table.coverage == 1.5  # a key of ours stays one
    (tmp_path / "config.toml").write_text(to_toml(table))
    assert from_mapping(read_toml(tmp_path / "config.toml")) == table
    with pytest.raises(UserError, match=r"'selector.temperature' in here must be text, a number, true or false"):
        from_mapping({"selector": {"temperature": [3]}}, "here")


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Unknown key 'round' in here \(did you mean 'rounds'\?\)"):
        from_mapping({"round": 3}, "here")
    with pytest.raises(UserError, match=r"did you mean 'server_momentum'"):
        from_mapping({"sever_momentun": 3})
    with pytest.raises(UserError, match=r"did you mean 'pretraining_rounds'"):
        from_mapping({"T0": 3})  # what the paper calls it


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("rounds", 0, "'rounds' must be at least 1, not 0."),
        ("rounds", 2.5, "'rounds' must be a whole number, not 2.5."),
        ("rounds", True, "'rounds' must be a whole number, not True."),
        ("seed", -1, "'seed' must be at least 0, not -1."),
        ("lr", 0, "'lr' must be above 0, not 0.0."),
        ("lr", float("nan"), "'lr' must be above 0, not nan."),
        ("lr", float("inf"), "'lr' must be above 0, not inf."),
        ("lr", "fast", "'lr' must be a number, not 'fast'."),
        ("momentum", 1, "'momentum' must be at least 0 and below 1, not 1.0."),
        ("weighting", "size", "'weighting' must be one of equal, samples, not 'size'."),
        ("rounds", 10**400, "'rounds' is too large a number."),
        ("lr", 10**400, "'lr' is too large a number."),
        ("data_dir", "\udcff", "'data_dir' must be text in UTF-8"),
        ("selector", 3, "'selector' must be text, not 3."),
        ("federation", [], "'federation' must be text, not []."),
        ("hcsfed_rate", 2, "'hcsfed_rate' must be above 0 and at most 1, not 2.0."),
    ],
)
def test_wrong_values_are_told_with_the_key(key: str, value: object, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        from_mapping({key: value})
    assert sentence in str(error.value)


def test_assignments_are_read_as_toml_or_as_text() -> None:
    got = parse_assignments(
        ["rounds=3", "lr = 1e-2", "selector=uniform", 'model="cnn"', "federation=gai:digits", "seed=x=1"]
    )
    assert got == {
        "rounds": 3,
        "lr": 0.01,
        "selector": "uniform",
        "model": "cnn",
        "federation": "gai:digits",
        "seed": "x=1",
    }
    for wrong in ("rounds", "=3", ""):
        with pytest.raises(UserError, match="not of the form key=value"):
            parse_assignments([wrong])
    assert parse_assignments(["model=1\nlr=2"]) == {"model": "1\nlr=2"}  # one assignment sets one key


@example(text='\x7f"\\\n𝜃', lr=1e-5, seed=0)
@given(text=st.text(max_size=20), lr=st.floats(1e-300, 1e300), seed=st.integers(0, 2**62))
def test_toml_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, text: str, lr: float, seed: int) -> None:
    config = Config(selector=text, lr=lr, seed=seed)
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert from_mapping(read_toml(path)) == config


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot read the config file .*: No such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(tmp_path / "bytes.toml")


def test_differences_name_keys_and_both_values() -> None:
    a = Config(seed=1)
    assert differences(a.plain(), replace(a, seed=2, lr=0.5).plain()) == ["seed (1, not 2)", "lr (0.02, not 0.5)"]
    assert differences(a.plain(), a.plain()) == []


def test_settings_fill_in_what_the_federation_decides() -> None:
    got = settings(Config(num_selected=5), num_classes=4, num_attributes=2, num_selected=9)
    assert (got["num_classes"], got["num_attributes"], got["num_selected"]) == (4, 2, 5)
    assert settings(Config(num_attributes=3), 4, 2, 9)["num_attributes"] == 3
    assert settings(Config(), 4, 2, 9)["num_selected"] == 9


def test_every_key_says_what_it_is() -> None:
    assert all(key.metadata["help"] for key in fields(Config))
