"""What the paper published: worst-group accuracy in percent, mean and standard deviation over three runs; and the
formulas of Table II.

Source: Németh et al., "FedDiverse: Tackling Data Heterogeneity in Federated Learning with Diversity-Driven Client
Selection", Tables I (`tab:selection`), III (`tab:optimizers`) and IV (`tab:steps`), copied digit by digit. The paper
does not say by which rule (n or n − 1) its deviations were computed. Rows are named as our config names them.
"""

from dataclasses import dataclass

from feddiverse.experiment.config import Config
from feddiverse.experiment.grids import TABLE_I

Value = tuple[float, float]  # mean, standard deviation

# Table I. Optimiser FedAvgM; FedPNS was not run on 100 clients ("not scalable").
_SELECTION: dict[str, tuple[Value | None, ...]] = {
    "feddiverse": ((88.01, 0.96), (89.91, 1.91), (87.28, 1.61), (54.10, 2.03),
                   (86.06, 0.58), (94.01, 0.98), (91.22, 1.61)),
    "uniform": ((86.27, 1.12), (87.59, 2.00), (85.86, 2.56), (42.42, 0.59),
                (84.02, 0.63), (92.00, 1.61), (86.96, 1.28)),
    "round_robin": ((87.12, 0.87), (87.64, 0.90), (86.17, 2.65), (41.23, 2.18),
                    (83.54, 1.83), (93.51, 0.49), (85.54, 0.40)),
    "fednova": ((87.49, 0.73), (88.52, 1.49), (87.22, 0.47), (42.83, 0.71),
                (84.65, 0.64), (93.23, 0.34), (87.33, 0.18)),
    "pow_d": ((89.12, 0.32), (89.01, 1.18), (86.91, 1.52), (56.75, 2.49),
              (83.54, 2.01), (92.85, 0.47), (89.85, 1.00)),
    "fedpns": ((85.75, 1.34), (85.02, 9.12), (82.22, 6.94), (48.75, 12.14),
               (84.35, 1.45), (91.49, 1.42), None),
    "hcsfed": ((86.80, 0.86), (87.17, 0.27), (85.96, 2.70), (41.66, 1.80),
               (85.59, 0.66), (91.45, 1.11), (85.49, 0.78)),
}  # fmt: skip

# Table III: per federation (random, FedDiverse); its columns are the first six of Table I.
_OPTIMIZERS: dict[str, tuple[tuple[Value, Value], ...]] = {
    "fedavg": (((85.09, 1.00), (85.90, 1.62)), ((85.65, 3.85), (89.43, 0.63)), ((80.49, 0.52), (84.33, 1.51)),
               ((31.72, 3.05), (46.47, 1.31)), ((81.07, 1.29), (83.86, 1.20)), ((87.58, 2.38), (91.01, 0.58))),
    "fedavgm": (((86.27, 1.12), (88.01, 0.96)), ((87.59, 2.00), (89.91, 1.91)), ((85.86, 2.56), (87.28, 1.61)),
                ((42.42, 0.59), (54.10, 2.03)), ((84.02, 0.63), (86.06, 0.58)), ((92.00, 1.61), (94.01, 0.98))),
    "fedprox": (((84.43, 1.91), (86.33, 1.49)), ((82.91, 4.89), (87.30, 3.01)), ((81.39, 2.12), (83.81, 2.46)),
                ((31.57, 2.87), (43.51, 0.70)), ((80.44, 1.55), (83.64, 0.74)), ((91.36, 0.95), (91.49, 1.86))),
    "fedavgm+fedprox": (((85.41, 1.67), (87.85, 1.26)), ((88.38, 1.42), (90.48, 1.61)), ((85.65, 3.76), (85.17, 1.79)),
                        ((44.29, 1.26), (53.84, 0.90)), ((82.97, 0.69), (86.12, 0.97)), ((92.42, 0.71), (93.24, 0.38))),
}  # fmt: skip

SELECTION: dict[tuple[str, str], Value] = {
    (row, column): value
    for row, values in _SELECTION.items()
    for column, value in zip(TABLE_I, values, strict=True)
    if value is not None
}
"""Table I: (method, federation)."""

OPTIMIZERS: dict[tuple[str, str, str], Value] = {
    (optimizer, selector, column): value
    for optimizer, pairs in _OPTIMIZERS.items()
    for column, pair in zip(TABLE_I[:6], pairs, strict=True)
    for selector, value in zip(("uniform", "feddiverse"), pair, strict=True)
}
"""Table III: (optimizer, selector, federation)."""

ABLATION: dict[tuple[int, str, str, str], Value] = {
    (20, "predicted", "triplet", "fedavg"): (44.03, 0.32), (20, "predicted", "triplet", "fedavgm"): (55.04, 3.09),
    (1, "predicted", "triplet", "fedavg"): (46.47, 1.31), (1, "predicted", "triplet", "fedavgm"): (54.10, 2.03),
    (20, "known", "triplet", "fedavg"): (48.08, 3.27), (20, "known", "triplet", "fedavgm"): (58.00, 0.77),
    (1, "known", "triplet", "fedavg"): (50.62, 3.00), (1, "known", "triplet", "fedavgm"): (58.88, 2.57),
    (20, "known", "matrix", "fedavg"): (49.74, 2.30), (20, "known", "matrix", "fedavgm"): (58.41, 2.04),
    (1, "known", "matrix", "fedavg"): (51.82, 3.79), (1, "known", "matrix", "fedavgm"): (57.84, 0.48),
}  # fmt: skip
"""Table IV, on waterbirds-dist: (T0, interaction matrix, message, optimizer)."""

WHERE = {
    "selection": "Table I; its FedDiverse is the one with the paper’s estimator",
    "optimizers": "Table III; its FedDiverse is the one with the paper’s estimator",
    "ablation": "Table IV, its uniform row from Table III",
}
"""Where a study's published values stand."""


def value(study: str, config: Config, federation: str) -> Value | None:
    """What the paper has for a run of one of its tables on one of its federations; None where it has nothing."""
    optimizer = f"{config.aggregator}+fedprox" if config.prox_mu else config.aggregator
    optimizer = "fedprox" if optimizer == "fedavg+fedprox" else optimizer
    if study == "selection":
        return SELECTION.get(("fednova" if config.selector == "everyone" else config.selector, federation))
    if study == "optimizers" or (study == "ablation" and config.selector == "uniform"):
        where = federation if study == "optimizers" else "waterbirds-dist"
        return OPTIMIZERS.get((optimizer, config.selector, where))
    if study == "ablation":
        matrix = "known" if config.estimator == "oracle" else "predicted"
        message = "matrix" if config.selector == "group_balance" else "triplet"
        return ABLATION.get((config.pretraining_rounds, matrix, message, optimizer))
    return None


@dataclass(frozen=True)
class Formulas:
    """A row of Table II; ours where the paper has none."""

    frequency: str
    communication: str
    client: str
    server: str
    in_paper: bool = True


OVERHEAD = {
    "FedDiverse, paper's estimator": Formulas("t = 1", "3", "∀k: 2·O(n_k|θ|)", "O(K)"),
    "FedDiverse, consensus": Formulas("t = 1", "moments + 3", "∀k: O(n_k|θ|)", "O(K)", in_paper=False),
    "Uniform": Formulas("0", "0", "0", "O(1)"),
    "Round robin": Formulas("0", "0", "0", "O(1)"),
    "FedNova, all clients": Formulas("∀t", "3 + ∀k∉K': θ_k", "O(1) + ∀k∉K': O(n_k|θ|)", "O(K)"),
    "pow-d": Formulas("∀t", "1 + ∀k∉K': θ", "∀k∉K': O(n_k|θ|)", "O(K log K)"),
    "FedPNS": Formulas("0", "0", "0", "O(K²|θ|²)"),
    "HCSFed": Formulas("t = 1", "r·θ_k", "r|θ|²", "t = 1: O(K·r|θ|), then O(K)"),
    "Group balance": Formulas("t = 1", "moments + |Y||A|", "∀k: O(n_k|θ|)", "t = 1: O(K(|Y||A|)²), then O(K)",
                              in_paper=False),
    "Fed-CBS": Formulas("t = 1", "|Y|", "O(n_k)", "O(κK|Y|)", in_paper=False),
    "Oort": Formulas("∀t", "2", "∀k∈K': O(n_k|θ|)", "O(K log K)", in_paper=False),
    "Label entropy": Formulas("t = 1", "|Y|", "O(n_k)", "O(κK|Y|)", in_paper=False),
}  # fmt: skip
"""Table II, by the names of our rows (`experiment.overhead.METHODS`)."""
