"""The page: one file, the answer first, nothing hostile, the same bytes every time, and its figures."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, make_study
from scipy import stats

from feddiverse.errors import UserError
from feddiverse.report import figures, hidden, page, svg
from feddiverse.report.answer import answers
from feddiverse.report.reproduce import command
from feddiverse.report.results import load

ATTACK = '<script>alert("x")</script>'


class Reader(HTMLParser):
    """Collects what matters to readers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    accuracies = {
        ("Uniform random", "digits-gsc"): [0.891, 0.896, 0.833],
        ("FedDiverse", "digits-gsc"): [0.920, 0.919, 0.880],
        (ATTACK, "digits-gsc"): [0.5, 0.6, None],
    }
    return make_study(tmp_path_factory.mktemp("study"), accuracies)


@pytest.fixture(scope="module")
def text(study: Path) -> str:
    return page.render(load(study))


def test_opens_with_what_was_shown_and_how_sure(study: Path, text: str) -> None:
    (answer,) = answers(load(study))
    ahead = stats.ttest_rel([92.0, 91.9, 88.0], [89.1, 89.6, 83.3]).confidence_interval()
    interval = f"+{ahead.low:.1f} to +{ahead.high:.1f}, 3 seeds"
    assert answer.headline == f"digits-gsc: FedDiverse is best, +3.3 points ({interval}) over Uniform random."
    body = text[text.index("<main") :]
    assert body.index("+3.3 points") < body.index("<table")


def test_says_what_is_missing(text: str) -> None:
    assert "1 of the study’s runs are not finished" in text


def test_needs_nothing_from_anywhere(text: str) -> None:
    reader = read(text)
    links = [value for _, attributes in reader.tags for key, value in attributes.items() if key in {"href", "src"}]
    assert links
    assert all(link is not None and link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(http" not in text


def test_text_from_data_is_escaped_even_in_figures(text: str) -> None:
    assert ATTACK not in text
    assert "&lt;script&gt;alert" in text
    assert len(read(text).all("script")) == 1


def test_ids_are_unique_and_references_resolve(text: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert wanted <= set(ids)


def test_pictures_have_words_and_tables_have_heads(text: str) -> None:
    reader = read(text)
    plots = [a for _, a in reader.tags if a.get("class") == "plot"]
    assert len(plots) == len(reader.all("svg")) == 3 + 2 + 3 + 3 + 3  # groups, two on all, kinds, shares, estimates
    assert all(a["role"] == "img" and "Arrow keys" in (a["aria-label"] or "") for a in plots)
    words = [a["aria-label"] or "" for _, a in reader.tags if (a.get("class") or "").startswith("plots")]
    assert len(words) == 6
    assert all(len(each) > 40 for each in words)
    assert all(a.get("aria-hidden") == "true" for a in reader.all("svg"))
    assert len(reader.all("caption")) == len(reader.all("table"))
    assert all(a.get("scope") in {"col", "row"} for a in reader.all("th"))
    assert reader.all("html")[0]["lang"] == "en"


def test_same_results_give_the_same_bytes(study: Path, text: str) -> None:
    assert page.render(load(study)) == text


def test_every_number_has_its_command(text: str) -> None:
    table = text[text.index('<table id="commands"') :]
    assert table.count("<code>feddiverse run --federation digits-gsc") == 8
    assert "--set evaluate_every=5" not in text  # defaults need not be said


def test_one_run_has_a_page_too(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 0.9, estimated=True, selector="feddiverse")
    written = page.write(load(tmp_path / "run"), tmp_path / "deep" / "report.html")
    assert "feddiverse reaches 90.00\u00a0%" in written.read_text("utf-8")


def test_colours_contrast_in_light_and_dark() -> None:
    css = (Path(page.__file__).parent / "page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in css.split("@media")[:2])
    for colours in (light, dark):
        for name in ("ink", "muted", "link"):
            assert contrast(colours[name], colours["paper"]) >= 4.5
            assert contrast(colours[name], colours["raised"]) >= 4.5
        for name in (f"c{i}" for i in range(8)):
            assert contrast(colours[name], colours["paper"]) >= 3
    assert tuple(light[f"c{i}"] for i in range(8)) == svg.PALETTE


def contrast(a: str, b: str) -> float:
    """WCAG 2's contrast ratio."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_ternary_points_are_barycentric() -> None:
    corners = figures.ternary(np.eye(3) * 0.4)
    assert corners == pytest.approx(figures.CORNERS)
    middle = figures.ternary(np.array([[0.2, 0.2, 0.2], [0, 0, 0]]))
    assert middle == pytest.approx(np.tile(figures.CORNERS.mean(axis=0), (2, 1)))
    halfway = figures.ternary(np.array([[0.3, 0.1, 0.0]]))
    assert halfway == pytest.approx(np.array([[0.25, 0.0]]))


def test_reproducing_takes_every_command_that_made_the_study(tmp_path: Path) -> None:
    commands = ["feddiverse study x --seeds 0", "feddiverse study x --seeds 1"]
    grown = page.render(load(make_study(tmp_path / "s", {("a", "digits-gsc"): [0.9, 0.8]}, commands=commands)))
    assert all(command in grown for command in commands)
    loose = make_run(tmp_path / "loose", 0.9)
    assert "All of it" not in page.render(load(loose))


def test_runs_of_older_versions_and_with_own_parts_are_read_and_repeated(tmp_path: Path) -> None:
    usual = "feddiverse run --federation digits-gsc --selector uniform --aggregator fedavg --rounds 40 --seed 0"
    old = make_run(tmp_path / "old", 0.9, aggregator="fedavg")
    text = (old / "config.toml").read_text()
    for optimizer, more in (("fedavg", ""), ("fedprox", " --set prox_mu=0.1")):  # µ stood there with any optimizer
        then = text.replace("aggregator = ", "optimizer = ").replace('"fedavg"', f'"{optimizer}"')
        (old / "config.toml").write_text(then.replace("prox_mu = 0.0", "prox_mu = 0.1"))
        assert command(load(old).all_runs[0].config) == usual + more
    own = make_run(tmp_path / "own", 0.8, aggregator="fedavg", selector={"name": "mine:Mine", "temperature": 3})
    expected = f"{usual.replace('uniform', 'mine:Mine')} --set selector.temperature=3"
    assert command(load(own).all_runs[0].config) == expected
    assert load(tmp_path).rows == (
        "uniform · prox_mu 0.1 · selector.temperature None",
        "mine:Mine · prox_mu 0.0 · selector.temperature 3",
    )


def test_discs_count_each_seeds_own_split(study: Path) -> None:
    """A split made by rule differs from seed to seed: client 0 of one is not client 0 of the other."""
    one = next(iter(load(study).at("FedDiverse", "digits-gsc").values()))
    second = replace(one, federation={**one.federation, "counts": one.counts[::-1].tolist()})
    drawing = figures.selection_triangle("FedDiverse", [one, second], 1)
    shares = [float(re.findall(r"([\d.]+) % of selections", mark.text)[0]) for mark in drawing.marks]
    chosen = np.concatenate([one.selection.times_chosen, second.selection.times_chosen])
    truth = np.concatenate([one.true_triplets, second.true_triplets])
    expected = [100 * chosen[kind].sum() / chosen.sum() for kind in figures.kinds(truth)]
    assert sorted(shares) == pytest.approx(sorted(expected), abs=0.051)
    assert len(shares) == len(figures.kinds(one.true_triplets))


def test_clients_are_called_by_their_names(tmp_path: Path) -> None:
    names = [f"<b>{k}</b> hospital" for k in range(24)]
    text = page.render(load(make_run(tmp_path / "run", 0.9, client_names=names)))
    assert "&lt;b&gt;23&lt;/b&gt; hospital" in text  # the only client with its matrix
    assert "<b>23" not in text
    assert "<td>8, 9, … 22</td>" in page.render(load(make_run(tmp_path / "numbered", 0.9)))


def test_a_run_whose_attribute_nobody_knows_has_groups_of_classes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 0.9, names=(["cat", "dog"], []))
    content = json.loads((run / "federation.json").read_text())
    content["counts"] = np.sum(content["counts"], axis=2, keepdims=True).tolist()
    (run / "federation.json").write_text(json.dumps(content))
    text = page.render(load(run))
    assert "Its weakest class is (cat)" in text
    assert '<button type="button">dog</button>' in text


def test_a_run_without_a_test_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 0.9)
    content = json.loads((run / "result.json").read_text())
    nothing = dict.fromkeys(("accuracy", "worst_group_accuracy", "worst_class_accuracy", "groups"))
    (run / "result.json").write_text(json.dumps({**content, **nothing}))
    *rounds, last = (run / "rounds.jsonl").read_text().splitlines()
    last = json.dumps({**json.loads(last), **nothing})
    (run / "rounds.jsonl").write_text("\n".join([*rounds, last, ""]))
    with pytest.raises(UserError, match="had no test samples"):
        load(run)


def test_figures_can_be_saved_for_print(study: Path, tmp_path: Path) -> None:
    written = page.save_figures(load(study), tmp_path / "figures", "png")
    assert len(written) == 14 + 1  # every plot, and the federation
    assert "digits-gsc-federation.png" in {path.name for path in written}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_values_lie_where_they_are_drawn(study: Path) -> None:
    """What a page shows at a point is what matplotlib drew there: checked by the line's own path in the SVG."""
    results = load(study)
    drawing = figures.accuracy_curves(results, "digits-gsc")
    text = svg.inline(drawing.figure, "p")
    of_diverse = [(x, y) for x, y, _, method in drawing.points() if method == 1]
    part = text[text.index("</defs>", text.index('data-method="1"')) :]  # after the band comes the line
    path = re.findall(r'data-method="1">\s*<path d="([^"]+)"', part)[0]
    drawn = [tuple(map(float, pair)) for pair in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]
    assert drawn == pytest.approx(np.array(of_diverse), abs=0.06)
    assert "FedDiverse, round 40: 90.6 % (88.0 to 92.0)" in [mark[2] for mark in drawing.points()]


def test_both_heads_are_shown_where_there_are_two(tmp_path: Path) -> None:
    places = {("Uniform random", "digits-gsc"): [0.6, 0.62, 0.64]}
    solved = {("Uniform random", "digits-gsc"): [0.8, 0.83, 0.84]}
    results = load(make_study(tmp_path, places, rebalanced=solved))
    (answer,) = answers(results)
    gain = stats.ttest_rel([80, 83, 84], [60, 62, 64]).confidence_interval()
    interval = f"+{gain.low:.1f} to +{gain.high:.1f}, 3 seeds"
    assert answer.head == (f"Rebalancing the last layer: Uniform random 62.0 → 82.3 %, +20.3 points ({interval}).")
    shown = {each.name: each for each in page.illustrations(results, "digits-gsc", "s0")}["s0-heads"]
    assert "62.0 % and 82.3 %" in shown.says
    over_rounds = page.illustrations(results, "digits-gsc", "s0")[0].panels[0].drawing.marks
    assert "worst group, rebalanced, round 40: 82.3 %" in [mark.text for mark in over_rounds]
    marks = [mark.text for mark in shown.panels[0].drawing.marks]
    assert {"0–4, red, trained: 62.0 %", "0–4, red, rebalanced: 82.3 %", "5–9, green, trained: 66.0 %"} <= set(marks)


def test_what_clients_differ_in_is_shown_only_where_it_may_be(tmp_path: Path) -> None:
    public = load(make_run(tmp_path / "digits", 0.9))
    own = load(make_run(tmp_path / "own", 0.9))
    found = hidden.look(public, asked=False)
    assert [strip.name for strip in found["digits-gsc"].strips] == ["0-4", "5-9"]
    text = page.render(public, found)
    assert text.count("<img ") == 24
    assert "<img " not in page.render(own)
    table = replace(own.all_runs[0], config=replace(own.all_runs[0].config, federation="table:private.csv"))
    assert hidden.look(replace(own, runs={("uniform", "digits-gsc"): {0: table}}), asked=False) == {}
    other = replace(own.all_runs[0], federation={**own.all_runs[0].federation, "counts": [[[1, 1], [1, 1]]]})
    assert hidden.look(replace(own, runs={("uniform", "digits-gsc"): {0: other}}), asked=False) == {}


def test_groups_that_nobody_knows_are_shown_as_estimated(tmp_path: Path) -> None:
    """Named by number, beside the classes; a seed whose groups are others has no part in the mean."""
    run = make_run(tmp_path / "run", 0.9, names=(["cat", "dog"], []))
    federation = json.loads((run / "federation.json").read_text())
    federation["counts"] = np.sum(federation["counts"], axis=2, keepdims=True).tolist()
    (run / "federation.json").write_text(json.dumps({**federation, "attributes_known": False}))
    for name in ("rounds.jsonl", "result.json"):
        records = [json.loads(line) for line in (run / name).read_text().splitlines()]
        for record in records:
            worst, groups = record["worst_group_accuracy"], record["groups"]
            of_class = groups and [{**group, "attribute": 0} for group in groups[:3:2]]
            record |= {"worst_group_accuracy": None, "groups": of_class}
            record |= {"worst_estimated_group_accuracy": worst and worst - 0.2, "estimated_groups": groups}
        (run / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    shown = {each.name: each for each in page.illustrations(load(run), "digits-gsc", "s")}
    assert shown["s-groups"].title == "Accuracy of every class"
    assert shown["s-estimated-groups"].title == "Accuracy of every estimated group"
    marks = [mark.text for mark in shown["s-estimated-groups"].panels[0].drawing.marks]
    assert "cat, a0, round 40: 90.0 %" in marks
    assert "dog, a1, round 40: 94.0 %" in marks
    assert "cat, a0" in page.render(load(run))
