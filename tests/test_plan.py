"""The plan of the house (docs/design.md): who may import whom, and which names are public."""

import ast
from pathlib import Path

import pytest

import feddiverse
from feddiverse import registry

SRC = Path(feddiverse.__file__).parent

# Each room may import itself, the rooms listed here, and the ground that everyone stands on.
GROUND = {"errors", "seeding", "messages", "heterogeneity", "files", "registry", "secagg"}
SERVER = {"server", "selection", "estimation"}  # one side of the wire; `client` is the other
MAY_IMPORT = {
    **{room: set() for room in GROUND},
    "splits": set(),
    "data": {"splits"},
    "models": set(),
    "client": {"data", "models"},
    "estimation": {"server"},
    "selection": {"estimation", "server"},
    "server": {"selection", "estimation"},
    "engine": {"client", "models", "data"},
    "experiment": {"engine", *SERVER, "models", "data"},
    "report": {"experiment"},
    "flower": {"experiment", "engine", "client", *SERVER, "models", "data", "splits"},
    "cli": {"report", "experiment", "engine", "data", "splits"},
    "__main__": {"cli"},
}
NO_TORCH = {"splits", "data", "report", "cli", *SERVER, *GROUND}


def files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} uses a relative import"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("feddiverse.")}


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_follow_the_plan(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    known = {room_of(p) for p in files()}
    allowed = MAY_IMPORT.get(room, set()) | GROUND | {room}
    assert rooms_imported(path) & known <= allowed
    packages = {name.split(".")[0] for name in imports_of(path)}
    if room in NO_TORCH:
        assert "torch" not in packages
    if room != "flower":
        assert not packages & {"flwr", "ray", "flwr_datasets"}


@pytest.mark.parametrize("name", ["cnn", "mobilenet"])
def test_a_plain_model_needs_nothing_but_torch(name: str) -> None:
    """The benchmark's peers read these files in environments of their own, where we are not installed."""
    assert not rooms_imported(SRC / "models" / f"{name}.py")


def test_every_room_is_in_the_plan() -> None:
    assert {room_of(p) for p in files()} == set(MAY_IMPORT) | {"__init__"}


def test_server_and_client_know_each_other_only_by_their_messages() -> None:
    assert all(not MAY_IMPORT[room] & {"client", "data", "models"} for room in SERVER)
    assert not MAY_IMPORT["client"] & SERVER


KINDS = [kind for kind in vars(registry).values() if isinstance(kind, registry.Kind)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_the_registry_names_is_there(kind: registry.Kind) -> None:
    """The registry knows addresses as text, so that it imports nobody: only here would a wrong one be found."""
    assert kind.builtin
    for name in kind.builtin:
        assert callable(registry.find(kind, name))


def test_public_names_are_pinned_and_real() -> None:
    assert sorted(feddiverse.__all__) == [
        "Aggregator",
        "Config",
        "Discovery",
        "Estimator",
        "Federation",
        "LocalEngine",
        "Reply",
        "Result",
        "RunError",
        "Samples",
        "Selector",
        "Task",
        "UserError",
        "__version__",
        "attribute_imbalance",
        "class_imbalance",
        "counts_of",
        "discover",
        "federation",
        "load_model",
        "load_run",
        "measure",
        "rebalance",
        "spurious_correlation",
        "train",
        "triplet",
    ]
    assert all(getattr(feddiverse, name) is not None for name in feddiverse.__all__)
