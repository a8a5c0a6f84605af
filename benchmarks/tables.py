"""The tables of docs/performance.md, and docs/trust.md's of the drill, made from results/*.json and put between the
pages' markers."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
TRUST = PAGE.with_name("trust.md")
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


def reach(result: dict[str, Any]) -> str:
    parts = [_machine(result)]
    for federation, found in result["federations"].items():
        plain, rows = found["plain"], []
        for of in ({"method": "plain loop, uniform selection", "head": "trained", **plain}, *found["methods"]):
            some = f" ({of['reached']} of {of['seeds']} seeds)" if 0 < of.get("reached", 0) < of.get("seeds", 0) else ""
            most = "at most " if of.get("at_most") else ""
            rounds = "–" if of["rounds"] is None else f"{most}{of['rounds']:.0f}{some}"
            seconds = "–" if of["seconds"] is None else f"**{of['seconds']['median']:.0f}** {_range(of['seconds'], 0)}"
            rows.append([of["method"], of["head"], rounds, _spread(of["round_s"], 2), seconds])
        head = ["", "last layer", "rounds", "seconds a round", f"seconds to {100 * found['level']:.0f} %"]
        parts.append(f"**{federation}**\n\n" + _table(head, rows))
    return "\n\n".join(parts)


def photographs(result: dict[str, Any]) -> str:
    rows = [
        ["starting, and decoding all pictures once", _clock(result["decoding_s"])],
        ["pre-training with all 30 clients", _clock(result["pretraining_s"])],
        ["estimating the triplets, once", _clock(result["estimating_s"])],
        ["a round of 9 clients", _clock(result["round_s"])],
        ["an evaluation", _clock(result["evaluation_s"])],
        ["**200 rounds, evaluated every ten** (reckoned from these)", f"**{_clock(result['whole_run_s'])}**"],
        ["peak memory of all processes", f"{result['peak_own_mb'] / 1000:.2f} GB"],
        ["the same with decoded pictures, which the system may drop", f"{result['peak_mb'] / 1000:.2f} GB"],
    ]
    return _machine(result) + "\n\n" + _table([f"Waterbirds, {result['side']} px", ""], rows)


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
         f"**{f['ratio']:.2f}** ({f['ratio_quartiles'][0]:.2f}–{f['ratio_quartiles'][1]:.2f})", f"{f['cpu_ratio']:.2f}",
         f"{f['products_ms']:.1f} ({f['products_ms'] / f['plain_step_ms']:.2f})" if "products_ms" in f else "–"]
        for model, found in result.items() if isinstance(found, dict)
        for what, f in found.items()
    ]  # fmt: skip
    load = f"Load of the machine afterwards: {result['load_of_machine']:.1f}."
    heads = [
        "28 pictures",
        "plain ms",
        "ours ms",
        "ratio (quartiles)",
        "of processor time",
        "products alone, ms (ratio)",
    ]
    return f"{load}\n\n{_table(heads, rows)}"


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
        for name, pair in found.get("three_workers_to_two", {}).items():
            rows.append([f"{model}: three workers on two cores / two, {name.replace('_', ' ')}", _spread(pair, 2), ""])
        if "flower" in result:
            pair = result["flower"][model]["flower_to_local"]
            rows.append([f"{model}: Flower engine / local engine, 9 clients 2 processes", _spread(pair, 2), ""])
    memory = result["memory_mobilenet_2_workers"]
    what = "mobilenet: peak memory / what data, weights, activations and PyTorch itself may take"
    rows.append([what, f"{memory['ratio']:.2f}", ""])
    return f"Load before: {result['load_before']:.1f}.\n\n" + _table(["", "ratio", "of processor time"], rows)


def hostile(result: dict[str, Any]) -> str:
    """Tables of the drill; a cell is the mean over its seeds, then each seed."""
    from benchmarks.hostile import AIM, LATER, ROUNDS, SEEDS

    everything = list(result.values())
    runs = [run for run in everything if run["seed"] in SEEDS and run.get("rounds", ROUNDS) == ROUNDS]
    strangers = [run for run in runs if run["federation"].startswith("dirichlet")]
    parts = ["**Lies in updates**, uniform selection, worst-group accuracy in percent: mean of the seeds (each)"]
    uniform = [run for run in strangers if run["selector"] == "uniform"]
    defences = list(dict.fromkeys(run["defence"] for run in uniform))
    rows = []
    for attack, liars in sorted({(run["attack"], run["liars"]) for run in uniform}, key=lambda row: (row[1], row[0])):
        of = [run for run in uniform if (run["attack"], run["liars"]) == (attack, liars)]
        cells = [_accuracy([run for run in of if run["defence"] == defence]) for defence in defences]
        rows.append([f"{liars} of 24: {attack}" if liars else "nobody lies", *cells])
    parts.append(_table(["", *(f"`{name}`" if name != "none" else "`mean`" for name in defences)], rows))
    parts.append(
        "**Lies in answers**: worst-group accuracy, and in how many rounds a liar was chosen (uniformly: 38 %)"
    )
    rows = []
    claims = [run for run in strangers if run["selector"] != "uniform"]
    for selector, liars, attack in dict.fromkeys((run["selector"], run["liars"], run["attack"]) for run in claims):
        of = [run for run in claims if (run["selector"], run["liars"], run["attack"]) == (selector, liars, attack)]
        cells = [
            _accuracy(own := [run for run in of if run["defence"] == d]) + _chosen(own) for d in ("none", "robust")
        ]
        rows.append([f"`{selector}`: {f'{liars} of 24: {attack}' if liars else 'nobody lies'}", *cells])
    rows.sort(key=lambda row: row[0].split(":")[0])
    parts.append(_table(["", "as it is", "`--recipe robust`"], rows))
    parts.append("**What one liar costs under a defence**, in points, each seed with a liar against the same without")
    rows = []
    for rounds in (ROUNDS, LATER):
        of_length = [run for run in everything if run.get("rounds", ROUNDS) == rounds]
        for selector, attack, defence in AIM:
            own = [
                r
                for r in of_length
                if (r["federation"][:9], r["selector"], r["defence"]) == ("dirichlet", selector, defence)
            ]
            honest = {r["seed"]: 100 * r["worst_group_accuracy"] for r in own if r["attack"] == "none"}
            lied = {r["seed"]: 100 * r["worst_group_accuracy"] for r in own if (r["attack"], r["liars"]) == (attack, 1)}
            rows.append([f"`{selector}`, {attack}, `{defence}`", str(rounds), *_cost(honest, lied)])
    parts.append(_table(["", "rounds", "mean change, 95 %", "seeds", "each"], rows))
    parts.append("**What clipping costs where nobody lies**, uniform selection, worst-group accuracy")
    rows = []
    splits = [run for run in runs if run["attack"] == "none" and not run["federation"].startswith("dirichlet")]
    for federation in dict.fromkeys(run["federation"] for run in splits):
        of = [run for run in splits if run["federation"] == federation]
        rows.append([federation, *(_accuracy([r for r in of if r["defence"] == d]) for d in ("none", "clipped_mean"))])
    parts.append(_table(["", "`mean`", "`clipped_mean`"], rows))
    return "\n\n".join(parts)


def _cost(honest: dict[int, float], lied: dict[int, float]) -> list[str]:
    """Paired over the seeds that both have."""
    from feddiverse.report.statistics import paired_difference

    seeds = sorted(honest.keys() & lied.keys())
    gap = paired_difference({s: lied[s] for s in seeds}, {s: honest[s] for s in seeds})
    if gap is None:
        return ["–", "0", "–"]
    interval = "" if gap.low is None else f" ({gap.low:+.1f} … {gap.high:+.1f})"
    return [f"**{gap.mean:+.1f}**{interval}", str(len(seeds)), ", ".join(f"{lied[s] - honest[s]:+.1f}" for s in seeds)]


def _accuracy(runs: list[dict[str, Any]]) -> str:
    values = [100 * run["worst_group_accuracy"] for run in sorted(runs, key=lambda run: run["seed"])]
    return f"**{sum(values) / len(values):.1f}** ({', '.join(f'{v:.1f}' for v in values)})" if values else "–"


def _chosen(runs: list[dict[str, Any]]) -> str:
    shares = [run["liars_chosen"] for run in runs if run["liars_chosen"] is not None]
    return f", {100 * sum(shares) / len(shares):.0f} %" if shares else ""


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "peers": peers,
    "growth": growth,
    "photographs": photographs,
    "reach": reach,
    "startup": startup,
    "step": step,
    "engine": engine,
    "hostile": hostile,
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


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 180 else f"{seconds / 60:.0f} min"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\")
