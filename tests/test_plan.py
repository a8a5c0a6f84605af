"""The plan of the house (docs/design.md): who may import whom, and which names are public."""

import ast
from pathlib import Path

import pytest

import feddiverse

SRC = Path(feddiverse.__file__).parent

# Each room may import itself, the rooms listed here, and the ground that everyone stands on.
GROUND = {"errors", "seeding", "messages", "heterogeneity", "_version"}
MAY_IMPORT = {
    "heterogeneity": set(),
    "splits": {"design"},
    "design": set(),
    "federation": {"splits"},
    "data": {"federation", "splits"},
    "models": {"federation"},
    "client": {"federation", "models"},
    "server": set(),
    "engine": {"client", "server", "models", "federation", "data"},
    "experiment": {"engine", "server", "models", "federation", "data", "splits"},
    "report": {"server", "splits", "experiment"},
    "flower": {"experiment", "engine", "client", "server", "models", "data", "federation", "splits"},
    "cli": {"flower", "report", "experiment", "engine", "server", "models", "federation", "data", "splits", "design"},
}
NO_TORCH = {"heterogeneity", "splits", "design", "federation", "server", "report", *GROUND}


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
    if not (room == "flower" or path.relative_to(SRC).as_posix().startswith("engine/flower")):
        assert not packages & {"flwr", "ray", "flwr_datasets"}


@pytest.mark.parametrize("name", ["cnn", "mobilenet"])
def test_a_plain_model_needs_nothing_but_torch(name: str) -> None:
    """The benchmark's peers read these files in environments of their own, where we are not installed."""
    assert not rooms_imported(SRC / "models" / f"{name}.py")


def test_every_room_is_in_the_plan() -> None:
    assert {room_of(p) for p in files()} - GROUND - {"__init__"} <= set(MAY_IMPORT)


def test_public_names_are_pinned_and_real() -> None:
    assert sorted(feddiverse.__all__) == [
        "Config",
        "Federation",
        "LocalEngine",
        "Reply",
        "RunError",
        "Samples",
        "Selector",
        "Task",
        "UserError",
        "__version__",
        "attribute_imbalance",
        "class_imbalance",
        "counts_of",
        "execute",
        "open_federation",
        "measure",
        "spurious_correlation",
        "triplet",
    ]
    assert all(getattr(feddiverse, name) is not None for name in feddiverse.__all__)
