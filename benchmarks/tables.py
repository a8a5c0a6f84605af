"""The tables of docs/performance.md, made from results/*.json and put between the page's markers."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
MODELS = {"mobilenet": "MobileNetV2, 2.2 million weights", "cnn": "small CNN, 90 thousand weights"}


def write(page: Path = PAGE) -> None:
    """Replace what stands between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`, for every result there is."""
    text = page.read_text()
    for name, render in TABLES.items():
        file = RESULTS / f"{name}.json"
        if file.exists():
            table = render(json.loads(file.read_text()))
            text = re.sub(
                rf"(<!-- bench:{name} -->\n).*?(<!-- /bench:{name} -->)", rf"\1{_escape(table)}\n\2", text, flags=re.S
            )
    page.write_text(text)


def peers(result: dict[str, Any]) -> str:
    parts = [_machine(result)]
    for model, title in MODELS.items():
        rows = []
        for peer, found in result.get("table", {}).get(model, {}).items():
            memory = "–" if found["peak_mb"] is None else f"{found['peak_mb'] / 1000:.2f} GB"
            rows.append(
                [peer, _spread(found["round_s"], 3), f"**{found['ratio']['median']:.2f}** {_range(found['ratio'], 2)}",
                 _spread(found["cpu_s_per_round"], 2), _spread(found["first_round_s"], 1), memory]
            )  # fmt: skip
        head = [
            "",
            "seconds a round",
            "ratio to the plain loop",
            "processor seconds",
            "first round after",
            "peak memory",
        ]
        parts.append(f"**{title}**\n\n" + _table(head, rows))
    failures = {e["peer"]: e["failure"] for e in result["launches"] if "failure" in e}
    for peer, reason in {**failures, **result["absent"]}.items():
        parts.append(f"- {peer}: {reason}")
    return "\n\n".join(parts)


def growth(result: dict[str, Any]) -> str:
    parts = [_machine(result)]
    for name in ("clients", "selected", "weights", "pixels"):
        sweep = result[name]
        rows = [
            [f"{p['size']:,}", f"{p['round_s']:.3f}", f"{p['cpu_s']:.2f}", f"{p['not_training_s']:.3f}",
             f"{p['first_round_s']:.1f}", f"{p['peak_mb']:,.0f}"]
            for p in sweep["points"]
        ]  # fmt: skip
        rows.append(
            ["exponent", f"{sweep['exponent_round_s']:+.2f}", f"{sweep['exponent_cpu_s']:+.2f}", "", "",
             f"{sweep['exponent_peak_mb']:+.2f}"]
        )  # fmt: skip
        head = [sweep["unit"], "seconds a round", "processor seconds", "not training", "first round after", "peak MB"]
        parts.append(_table(head, rows))
    sizes = [p["size"] for p in result["feddiverse"]["points"]]
    titles = {"feddiverse": "FedDiverse's choice", "uniform": "uniform choice", "measuring": "six metrics"}
    rows = [
        [title, *(_short(p["seconds"]) for p in result[name]["points"]), f"{result[name]['exponent_seconds']:+.2f}"]
        for name, title in titles.items()
    ]
    parts.append(_table(["processor seconds for", *(f"{n:,} clients" for n in sizes), "exponent"], rows))
    return "\n\n".join(parts)


def startup(result: dict[str, Any]) -> str:
    rows = [
        [f"`{name}`", f"{c['seconds']:.2f} ({c['seconds_min']:.2f}–{c['seconds_max']:.2f})", f"{c['cpu_seconds']:.2f}",
         "" if c["goal"] is None else f"{c['goal']:g}"]
        for name, c in result["commands"].items()
    ]  # fmt: skip
    return _machine(result) + "\n\n" + _table(["command", "seconds", "processor seconds", "goal"], rows)


def step(result: dict[str, Any]) -> str:
    rows = [
        [f"{model}, {what}", f"{f['plain_step_ms']:.1f}", f"{f['our_step_ms']:.1f}",
         f"**{f['ratio']:.2f}** ({f['ratio_quartiles'][0]:.2f}–{f['ratio_quartiles'][1]:.2f})", f"{f['cpu_ratio']:.2f}"]
        for model, found in result.items() if isinstance(found, dict)
        for what, f in found.items()
    ]  # fmt: skip
    load = f"Load of the machine afterwards: {result['load_of_machine']:.1f}."
    return (
        load + "\n\n" + _table(["28 pictures", "plain ms", "ours ms", "ratio (quartiles)", "of processor time"], rows)
    )


def engine(result: dict[str, Any]) -> str:
    rows = []
    for model in MODELS:
        found = result[model]
        for name, pair in found["engine_to_bare"].items():
            wall, cpu = pair["wall"], pair["cpu"]
            rows.append(
                [f"{model}: engine / bare loop, {name.replace('_', ' ')}", _spread(wall, 2), f"{cpu['median']:.2f}"]
            )
        for name, pair in found["two_workers_over_one"].items():
            rows.append([f"{model}: one worker / two, {name.replace('_', ' ')}", _spread(pair, 2), ""])
        if "flower" in result:
            pair = result["flower"][model]["flower_to_local"]
            rows.append([f"{model}: Flower engine / local engine, 9 clients 2 processes", _spread(pair, 2), ""])
    memory = result["memory_mobilenet_2_workers"]
    what = "mobilenet: peak memory / what data, weights, activations and PyTorch itself may take"
    rows.append([what, f"{memory['ratio']:.2f}", ""])
    return f"Load before: {result['load_before']:.1f}.\n\n" + _table(["", "ratio", "of processor time"], rows)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "peers": peers,
    "growth": growth,
    "startup": startup,
    "step": step,
    "engine": engine,
}


def _machine(result: dict[str, Any]) -> str:
    m = result["machine"]
    return (
        f"{m['processor']}, {m['cores']} cores, {m['memory_gb']} GB, Python {m['python']}, torch {m['torch']}; "
        f"load before: {m['load_before']}."
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(found: dict[str, float], digits: int) -> str:
    return f"{found['median']:.{digits}f} {_range(found, digits)}"


def _range(found: dict[str, float], digits: int) -> str:
    return f"({found['min']:.{digits}f}–{found['max']:.{digits}f})"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\")
