"""`feddiverse measure` and `feddiverse federations`, as a user calls them."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from feddiverse.cli import app
from feddiverse.cli.measure import _complete
from feddiverse.data.names import FEDERATIONS, counts_of
from feddiverse.errors import UserError
from feddiverse.splits import PAPER

RUNNER = CliRunner()
METRICS = ["gci", "gai", "gsc", "cci", "cai", "csc"]


def call(*arguments: str) -> str:
    """What a command prints on stdout."""
    result = RUNNER.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """The sentence with which a command refuses."""
    with pytest.raises(UserError) as caught:
        RUNNER.invoke(app, list(arguments), catch_exceptions=False)
    return str(caught.value)


def run_as_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from feddiverse.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_json_has_the_metrics_of_the_paper_and_each_client() -> None:
    measured = json.loads(call("measure", "spawrious-gai", "--json"))
    assert list(measured) == [*METRICS, "clients"]
    assert [round(measured[name], 3) for name in METRICS] == [0.005, 0.441, 0.052, 0.201, 0.497, 0.119]
    assert len(measured["clients"]) == 25
    assert list(measured["clients"][0]) == ["client", "n", "ci", "ai", "sc"]
    assert (measured["clients"][24]["client"], measured["clients"][24]["n"]) == (24, 208)


def test_a_table_for_people_shows_the_same_and_joins_equal_neighbours() -> None:
    shown = call("measure", "spawrious-gai")
    assert "25 clients, 4,600 samples" in shown
    assert all(f"{value:.3f}" in shown for value in (0.005, 0.441, 0.052, 0.201, 0.497, 0.119))
    assert "10…23" in shown


def test_many_different_clients_are_cut_short() -> None:
    shown = call("measure", "dirichlet(clients=100):cmnist")
    assert "all 100 clients" in shown
    assert len(shown.splitlines()) < 90


def test_all_seven() -> None:
    measured = json.loads(call("measure", "--all", "--json"))
    assert list(measured) == list(PAPER)
    assert round(measured["waterbirds-dist"]["csc"], 3) == 0.761
    assert all(name in call("measure", "--all") for name in PAPER)


def test_a_csv_of_one_row_a_sample_and_of_groups_agree(tmp_path: Path) -> None:
    counts = counts_of("spawrious-gai")
    cells = [(k, y, a, int(counts[k, y, a])) for k in range(25) for y in range(2) for a in range(2)]
    samples, groups = tmp_path / "samples.csv", tmp_path / "groups.csv"
    lines = [f"site{k},{y},{a}" for k, y, a, n in cells for _ in range(n)]
    samples.write_text("\n".join(["client,label,attribute", *lines]))
    groups.write_text("\n".join(["k,y,a,n", *(f"site{k},{y},{a},{n}" for k, y, a, n in cells)]))
    one = json.loads(call("measure", str(samples), "--json"))
    columns = ("--client", "k", "--label", "y", "--attribute", "a", "--count", "n")
    other = json.loads(call("measure", str(groups), *columns, "--json"))
    assert one == other
    assert one["clients"][3]["client"] == "site3"
    expected = json.loads(call("measure", "spawrious-gai", "--json"))
    assert [one[name] for name in METRICS] == [expected[name] for name in METRICS]


def test_a_table_of_pictures_is_measured_by_its_training_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pictures.csv"
    rows = [f"{i}.png,{i % 2},{i % 2},{'north' if i < 6 else 'south'},train" for i in range(12)]
    path.write_text("\n".join(["image,class,attribute,client,split", *rows, "t.png,0,1,north,test"]))
    measured = json.loads(call("measure", f"table:{path}", "--json"))
    assert measured["gsc"] == pytest.approx(1)
    assert [(c["client"], c["n"]) for c in measured["clients"]] == [("north", 6), ("south", 6)]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert json.loads(call("measure", "table:~/pictures.csv", "--json")) == measured


def test_a_table_without_clients_needs_a_split(tmp_path: Path) -> None:
    path = tmp_path / "pictures.csv"
    path.write_text("image,class,attribute,split\na.png,0,0,train\nb.png,1,1,test\n")
    said = "has no column 'client': it has image, class, attribute, split; name yours with --client"
    assert said in refused("measure", f"table:{path}")
    assert len(json.loads(call("measure", f"gsc:table:{path}", "--json"))["clients"]) == 24


def test_without_attributes_only_the_class_part_is_known(tmp_path: Path) -> None:
    path = tmp_path / "scans.csv"
    rows = ["a.png,ill,north,train"] * 3 + ["b.png,well,north,train", "c.png,ill,south,train", "d.png,ill,,test"]
    path.write_text("\n".join(["image,label,hospital,split", *rows]))
    measured = json.loads(call("measure", str(path), "--client", "hospital", "--json"))
    share = np.array([4, 1]) / 5
    assert measured["gci"] == pytest.approx(1 + float((share * np.log2(share)).sum()))
    assert [measured[name] for name in ("gai", "gsc", "cai", "csc")] == [None] * 4
    assert [(c["client"], c["n"], c["ai"], c["sc"]) for c in measured["clients"]] == [
        ("north", 4, None, None),
        ("south", 1, None, None),
    ]
    shown = call("measure", str(path), "--client", "hospital")
    assert "unknown" in shown
    assert f"feddiverse discover {path} --client hospital\n" in shown  # as this table is read
    path.write_text("age,label,hospital\n7,ill,north\n8,well,south\n")
    shown = call("measure", str(path), "--client", "hospital")
    assert f"feddiverse discover {path} --client hospital --features COLUMN,…" in shown
    path.write_text("rows,label,hospital\n7,ill,north\n8,well,south\n")
    assert "discover" not in call("measure", str(path), "--client", "hospital", "--count", "rows")  # sums of samples


def test_a_figure_is_drawn_beside_what_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    assert json.loads(call("measure", "cmnist-gsc", "--json", "--plot", str(path)))["gai"] == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_design_reports_its_distance() -> None:
    text = "design(like=spawrious-gci,clients=20,samples=4000):cmnist"
    measured = json.loads(call("measure", text, "--json"))
    assert measured["design"]["distance"] < 0.002
    assert measured["design"]["targets"]["gci"] == pytest.approx(0.163, abs=0.001)
    assert "within 0.00" in call("measure", text)


def test_a_text_too_long_for_a_file_name_is_still_a_name() -> None:
    targets = ",".join(f"{name}={value:.60f}" for name, value in zip(METRICS, (0, 0, 0.2, 0.1, 0.1, 0.4), strict=True))
    measured = json.loads(call("measure", f"design({targets}):cmnist", "--json"))
    assert measured["csc"] == pytest.approx(0.4, abs=0.002)


def test_a_file_does_not_hide_a_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cmnist-gsc").write_text("anything")
    assert len(json.loads(call("measure", "cmnist-gsc", "--json"))["clients"]) == 24


def test_names_are_completed() -> None:
    assert _complete("spawrious-g") == ["spawrious-gsc", "spawrious-gci", "spawrious-gai", "spawrious-gci-100"]


def test_the_seed_makes_random_splits() -> None:
    text = "dirichlet(alpha=0.3,clients=8,samples=800):digits"
    assert call("measure", text, "--json") == call("measure", text, "--seed", "0", "--json")
    assert call("measure", text, "--json") != call("measure", text, "--seed", "1", "--json")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "Say what to measure"),
        (("--all", "cmnist-gsc"), "Say what to measure"),
        (("nosuch",), "There is no federation 'nosuch'"),
        (("missing.csv",), "There is no file missing.csv"),
        (("cmnist-gsc", "--label", "y"), "--label names a column of a CSV"),
        (("cmnist-gsc", "--plot", "figure.jpg"), "must end in .png, .svg or .pdf"),
        (("cmnist-gsc", "--plot", "no/folder/figure.png"), "There is no folder no/folder"),
        (("gci:nowhere",), "There is no source 'nowhere'"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in refused("measure", *arguments)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty"),
        ("client,attribute\na,1\n", "has no column 'class'"),
        ("client,label,attribute,n\na,0,0,-1\n", "is negative"),
        ("client,label,attribute,n\na,0,0,1\nb,0,0,0\n", "Client b has no samples at all"),
    ],
)
def test_a_wrong_csv_ends_with_one_sentence_and_exit_code_2(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(content)
    done = run_as_program("measure", str(path), *(["--count", "n"] if ",n\n" in content else []))
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_measuring_is_quiet_and_never_loads_torch() -> None:
    program = (
        "import sys\n"
        "from feddiverse.cli import app\n"
        "app(['measure', 'spawrious-gai', '--json'], standalone_mode=False)\n"
        "heavy = {'torch', 'matplotlib', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "print(*heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "\n"


def test_federations_are_listed_with_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDDIVERSE_HOME", str(tmp_path))
    listed = {row["name"]: row for row in json.loads(call("federations", "--json"))}
    assert list(listed) == list(FEDERATIONS)
    assert listed["digits-gsc"]["missing"] is None
    assert "feddiverse fetch mnist" in listed["cmnist-gsc"]["missing"]
    assert "feddiverse fetch waterbirds" in listed["waterbirds-dist"]["missing"]
    row = listed["spawrious-gci-100"]
    assert (row["clients"], row["selected"], row["samples"], row["classes"]) == (100, 12, 15600, 2)
    shown = call("federations")
    assert all(name in shown for name in FEDERATIONS)
    assert "To use cmnist: feddiverse fetch mnist" in shown


def test_many_rows_are_counted_quickly(tmp_path: Path) -> None:
    path = tmp_path / "big.csv"
    path.write_text("client,label,attribute\n" + "".join(f"{i % 50},{i % 2},{i % 3}\n" for i in range(200_000)))
    start = time.process_time()
    assert json.loads(call("measure", str(path), "--json"))["gsc"] < 1e-6
    middle = time.process_time()
    with path.open() as stream:
        assert sum(1 for _ in csv.DictReader(stream)) == 200_000
    assert middle - start < 10 * (time.process_time() - middle)  # in processor time: about as long as only reading it
