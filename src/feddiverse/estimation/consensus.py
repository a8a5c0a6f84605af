"""The consensus estimator: an attribute that all clients mean alike, read off what differs between them.

Three questions, one forward pass each, nothing trained (docs/estimators.md has the messages and their sizes):
1. moments of features, summed over clients → the directions in which clients differ;
2. histograms along these, summed over clients → where each attribute value lies;
3. each client counts its samples and sends its triplet.
Why three: where values lie can only be asked when the directions are known, and counted when both are.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.errors import UserError
from feddiverse.estimation.base import Estimator, Triplet
from feddiverse.estimation.directions import Directions, Mixture, Scatter, find_directions, fit, num_features
from feddiverse.estimation.plausible import (
    FINE,
    histogram_problem,
    implied_triplet,
    moments_problem,
    total_problem,
    triplet_problem,
    trusted_scatter,
)
from feddiverse.messages import TOTAL, Ask, AttributeTriplet, FeatureHistogram, FeatureMoments, Plain, Reply
from feddiverse.server.replies import answers, triplet_in

Floats = NDArray[np.float64]
Reading = dict[str, NDArray[np.float32]]
"""How to read the attribute off projected features: fields of `AttributeTriplet`."""

REACH = 5.0  # standard deviations that the grid covers on either side
MAX_CELLS = 4096
MAX_BINS = 128
MAX_ATTRIBUTES = 13  # values: two bins on each of twelve axes are all the cells there are
WEAK = (
    1.6  # strength up to which clients are taken to differ by chance: shuffled real ones reach 1.4, others 2.4 and more
)
TOO_FEW_ANSWERED = (
    "Too few clients answered for the consensus estimator to compare them: it gives no triplets yet, and asks again."
)
NEAR = 2.0  # standard deviations: attribute values nearer than this cannot be told apart well


class Consensus(Estimator):
    """Learns once how to read the attribute, from the first clients; those who come late are read the same way.

    Whose answer cannot be true is refused for good. `largest_share`: a client that alone makes up more than this part
    of what clients differ in is left out of the sums, and named (1: nobody is; docs/trust.md).
    """

    gives_matrices = True

    def __init__(
        self,
        seed: int,
        num_classes: int,
        num_attributes: int = 2,
        consensus_dimensions: int = 256,
        confidence: float = 0.0,
        largest_share: float = 0.5,
    ) -> None:
        if num_attributes > MAX_ATTRIBUTES:
            raise UserError(
                f"The consensus estimator tells at most {MAX_ATTRIBUTES} attribute values apart, not {num_attributes}:"
                " set num_attributes to fewer."
            )
        self.seed = seed
        self.num_classes = num_classes
        self.num_attributes = num_attributes
        self.dimensions = consensus_dimensions
        self.confidence = confidence  # posterior from which a sample is counted in a matrix
        self.largest_share = largest_share
        self.reading: Reading | None = None
        self.refused: set[int] = set()  # clients whose answers contradict themselves: nothing else of them is believed
        # Of clients that have just told their parts of the sums: class counts, filled cells of the histogram and what
        # is in them, and the triplet that these imply.
        self._counts: Mapping[int, Floats] = {}
        self._histograms: dict[int, tuple[NDArray[np.intp], Floats]] = {}
        self._implied: dict[int, Triplet] = {}
        self.strength: float | None = None  # of what was seen, relative to chance; None: not compared (yet)
        self.separation: float | None = None  # of its values, in standard deviations; None: nothing was seen

    def learn(self, round: int, clients: Mapping[int, int], ask: Ask) -> Reading | None:
        """How to read the attribute off projected features, learnt once; None: too few answered."""
        return self._learn(round, clients, ask) if self.reading is None else self.reading

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        clients = {client: size for client, size in clients.items() if client not in self.refused}
        self._counts, self._implied = {}, {}
        reading = self.learn(round, clients, ask)
        if reading is None:
            return {}
        matrix = self.wants_matrices and reading is self.reading  # all matrices have the attributes of one reading
        task = AttributeTriplet(
            self.seed,
            round,
            self.dimensions,
            matrix=matrix,
            confidence=self.confidence,
            remember=self.remembered,
            **reading,  # type: ignore[arg-type]  # arrays only
        )
        found = {}
        clients = {client: size for client, size in clients.items() if client not in self.refused}

        def check(reply: Reply) -> str | None:
            num_classes, num_attributes = reading["shares"].shape
            told = self._counts.get(reply.client), self._implied.get(reply.client)
            size = clients[reply.client]
            return self._refuse(reply, triplet_problem(triplet_in(reply), size, num_classes, num_attributes, *told))

        for reply in answers(task, clients, ask, check=check):
            found[reply.client] = triplet_in(reply)
            if reply.vector is not None:
                self.matrices = self.matrices or {}
                self.matrices[reply.client] = reply.vector.astype(np.float64).reshape(self.num_classes, -1)
        return found

    def _learn(self, round: int, clients: Mapping[int, int], ask: Ask) -> Reading | None:
        """How to read the attribute off projected features; kept for later, unless too little was there to learn from.

        None: too few answered.
        """
        moments = FeatureMoments(self.seed, round, self.dimensions)

        def check(reply: Reply) -> str | None:
            if reply.vector is None:
                return "it sent no moments"
            if reply.members:  # a sum of many, hidden by secure aggregation
                if not num_features(reply.vector.size, self.num_classes):
                    return f"{reply.vector.size:,} numbers are no moments of features"
                return total_problem(reply, reply.vector[2 : 2 + self.num_classes].astype(np.float64))
            size = clients[reply.client]
            return self._refuse(reply, moments_problem(reply.vector, self.num_classes, size, self.dimensions))

        replies = answers(moments, clients, ask, check=check)
        trusted = trusted_scatter(replies, self.num_classes, max(1, self.num_attributes - 1), self.largest_share)
        self.warnings = [warning for warning in self.warnings if warning != TOO_FEW_ANSWERED]
        if trusted is None:
            return None
        for client, why in trusted.left_out.items():
            self._warn(f"Client {client} is left out of the consensus estimator's sums: {why}.")
        scatter, self._counts = trusted.scatter, trusted.counts
        left = {k: size for k, size in clients.items() if k not in self.refused and k not in trusted.left_out}
        # Who told no moments is not asked for a histogram: there would be nothing to hold it against.
        clients = left if TOTAL in self._counts else {k: size for k, size in left.items() if k in self._counts}
        if self.num_attributes > 1 and not scatter.can_be_compared:
            if scatter.num_clients < len(left):
                self._warn(TOO_FEW_ANSWERED)
                return None
            self._warn(
                "There are too few clients or samples for the consensus estimator to compare: CI is exact, AI and SC"
                " are given as 0."
            )
            return self._one_attribute(scatter)  # not kept: with those who come late there may be enough
        self.reading = self._read(scatter, round, clients, ask)
        return self.reading

    def _read(self, scatter: Scatter, round: int, clients: Mapping[int, int], ask: Ask) -> Reading | None:
        """The fields of `AttributeTriplet`; None: nobody answered the second question."""
        if self.num_attributes < 2:
            return self._one_attribute(scatter)
        directions = find_directions(scatter, self.num_attributes - 1, self.seed)
        self.strength = directions.strength
        if directions.strength <= WEAK:
            self._warn(
                "The consensus estimator sees no attribute: clients differ no more than chance explains, as when all"
                " have the same attribute mix. CI is exact, AI and SC are given as 0."
            )
            return self._one_attribute(scatter)
        axes, origin = standardise(directions, scatter)
        histogram = FeatureHistogram(
            self.seed,
            round,
            self.dimensions,
            directions=axes.astype(np.float32),
            origin=origin.astype(np.float32),
            bins=num_bins(axes.shape[1]),
            reach=REACH,
        )
        mixture = self._find_values(histogram, clients, ask)
        if mixture is None:
            return None
        self.separation = mixture.separation
        if mixture.separation < NEAR:
            self._warn(
                f"The attribute's values are only {mixture.separation:.1f} standard deviations apart in the model's"
                " features: expect many samples to be counted under a wrong one."
            )
        whiten = np.linalg.inv(np.linalg.cholesky(mixture.covariance)).T
        fields = {
            "directions": axes @ whiten,
            "origin": origin @ whiten,
            "centres": (mixture.centres[None] + mixture.offsets[:, None]) @ whiten,
            "shares": mixture.shares,
        }
        self._imply(grid(histogram) @ whiten, fields["centres"], fields["shares"])
        return {name: values.astype(np.float32) for name, values in fields.items()}

    def _imply(self, points: Floats, centres: Floats, shares: Floats) -> None:
        """What each client's histogram says of its triplet, which it is to tell next."""
        for client, (places, values) in self._histograms.items():
            cells = np.zeros((self.num_classes, len(points)))
            cells.ravel()[places] = values
            filled = cells.any(axis=0)
            self._implied[client] = implied_triplet(cells[:, filled], points[filled], centres, shares)
        self._histograms = {}

    def _refuse(self, reply: Reply, problem: str | None) -> str | None:
        """The problem; who has one is not asked again."""
        if problem:
            self.refused.add(reply.client)
        return problem

    def _find_values(self, task: FeatureHistogram, clients: Mapping[int, int], ask: Ask) -> Mixture | None:
        """Where the attribute's values lie, from the sum of all clients' histograms. None: nobody answered."""
        q = task.origin.size
        counts = np.zeros(self.num_classes * task.bins**q)

        def check(reply: Reply) -> str | None:
            if reply.members:
                return total_problem(reply, reply.numbers.astype(np.float64))
            return self._refuse(reply, histogram_problem(reply.numbers, self._counts[reply.client]))

        for reply in answers(task, clients, ask, length=counts.size, check=check):
            counts += reply.numbers
            if reply.client in clients and task.bins >= FINE:
                places = np.flatnonzero(reply.numbers)  # no more than it has samples
                self._histograms[reply.client] = places, reply.numbers[places].astype(np.float64)
        counts = counts.reshape(self.num_classes, -1)
        points = grid(task)
        filled = counts.sum(axis=0) > 0
        if not filled.any():
            return None
        seed = seeding.integer(self.seed, "attribute values")
        return fit(points[filled], counts[:, filled], self.num_attributes, seed)

    def _warn(self, warning: str) -> None:
        """Once is enough."""
        if warning not in self.warnings:
            self.warnings = [*self.warnings, warning]

    def _one_attribute(self, scatter: Scatter) -> Reading:
        """A reading under which every sample has the same, only, attribute."""
        d = len(scatter.within)
        shapes = {"directions": (d, 1), "origin": (1,), "centres": (self.num_classes, 1, 1)}
        blank = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        return blank | {"shares": np.ones((self.num_classes, 1), np.float32)}

    def state(self) -> Plain:
        refused = {"refused": sorted(self.refused)} if self.refused else {}
        return super().state() | refused | ({} if self.reading is None else {"reading": dict(self.reading)})

    def restore(self, state: Plain) -> None:
        super().restore(state)
        self.refused = set(state.get("refused", ()))
        if "reading" in state:
            self.reading = {name: np.asarray(values, np.float32) for name, values in state["reading"].items()}


def standardise(directions: Directions, scatter: Scatter) -> tuple[Floats, Floats]:
    """Axes [d, q] and origin [q] such that coordinates have mean 0 and unit covariance over all samples."""
    covariance = directions.axes.T @ scatter.covariance @ directions.axes
    values, vectors = np.linalg.eigh(covariance)
    axes = directions.axes @ (vectors / np.sqrt(np.maximum(values, 1e-12 * values.max())))
    return axes, scatter.mean @ axes


def grid(task: FeatureHistogram) -> Floats:
    """[cells, q]: the middles of a histogram's cells."""
    middles = ((np.arange(task.bins) + 0.5) * 2 / task.bins - 1) * task.reach
    q = task.origin.size
    return np.stack(np.meshgrid(*[middles] * q, indexing="ij"), axis=-1).reshape(-1, q)


def num_bins(q: int) -> int:
    """Bins on each of q axes, so that the grid has `MAX_CELLS` cells at most: 128, 64², 16³, 8⁴, 5⁵, …"""
    return max(2, min(MAX_BINS, int(MAX_CELLS ** (1 / q) + 1e-9)))
