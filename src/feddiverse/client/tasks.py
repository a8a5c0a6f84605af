"""A client's answer to every kind of question. The table `ANSWERS` is all a new kind of task needs to join."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from feddiverse.client import balance, consensus, evaluation, held_out, noise, paper, secagg, training
from feddiverse.client.draws import Unread, remember_truth
from feddiverse.client.sketch import compress
from feddiverse.data.federation import Samples
from feddiverse.messages import (
    AdvertiseKeys,
    AttributeTriplet,
    Evaluate,
    EvaluateHeldOut,
    FeatureHistogram,
    FeatureMoments,
    GroupSums,
    HeadErrors,
    LabelCounts,
    Loss,
    PaperTriplet,
    ReadHeldOut,
    Reply,
    ShareKeys,
    Sketch,
    Summed,
    Task,
    Train,
    TrueMatrix,
    Unmask,
    Vector,
)
from feddiverse.models import FlatModel
from feddiverse.secagg import Broken

log = logging.getLogger("feddiverse.client")

Answer = Callable[..., Reply]  # (task, theta, client_id, samples, model) → Reply; each takes its own kind of task


def train(task: Train, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    done = training.train(task, theta, client_id, samples, model)
    metrics = {"steps": float(done.steps)} | ({} if task.noise else {"loss": done.loss})
    vector = theta + _update(task, theta, client_id, samples, model) if task.clip else model.vector()
    return Reply(client_id, vector=vector, metrics=metrics)


def sketch(task: Sketch, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    training.train(task, theta, client_id, samples, model)
    return Reply(client_id, vector=compress(_update(task, theta, client_id, samples, model), task))


def _update(task: Train, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Vector:
    """What training changed, as it may leave the client."""
    update = model.vector() - theta
    return noise.private_update(task, update, client_id, samples) if task.clip else update


def loss(task: Loss, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    model.load(theta)
    losses = evaluation.sample_losses(model, samples)
    if not np.isfinite(losses).all():
        raise training.Diverged("the loss is not finite")
    mean, rms = float(losses.mean()), math.sqrt(float(np.square(losses).mean()))
    return Reply(client_id, metrics={"loss": mean, "loss_rms": rms})


def evaluate(task: Evaluate, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    model.load(theta)
    counts = evaluation.correct_and_total(model, samples, _num_attributes(task, samples))
    return Reply(client_id, vector=counts.astype(np.float32).ravel())


def label_counts(task: LabelCounts, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    counts = np.bincount(samples.y, minlength=model.spec.num_classes).astype(np.float64)
    counts = noise.private_counts(task, counts, client_id, samples)
    return Reply(client_id, vector=counts.astype(np.float32))


def true_matrix(task: TrueMatrix, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    if samples.a is None:
        return Reply(client_id, failure="the attributes of its samples are not known")
    if task.remember:
        remember_truth(samples)
    shape = (model.spec.num_classes, _num_attributes(task, samples))
    counts = evaluation.group_counts(samples, shape).astype(np.float64)
    counts = noise.private_counts(task, counts, client_id, samples)
    return Reply(client_id, vector=counts.astype(np.float32).ravel())


def _num_attributes(task: Evaluate | TrueMatrix, samples: Samples) -> int:
    return task.num_attributes or (1 if samples.a is None else int(samples.a.max(initial=0)) + 1)


ANSWERS: dict[type[Task], Answer] = {
    Train: train,
    Sketch: sketch,
    Loss: loss,
    Evaluate: evaluate,
    LabelCounts: label_counts,
    TrueMatrix: true_matrix,
    PaperTriplet: paper.paper_triplet,
    FeatureMoments: consensus.feature_moments,
    FeatureHistogram: consensus.feature_histogram,
    AttributeTriplet: consensus.attribute_triplet,
    GroupSums: balance.group_sums,
    HeadErrors: balance.head_errors,
    ReadHeldOut: held_out.read,
    EvaluateHeldOut: held_out.evaluate,
    AdvertiseKeys: secagg.advertise_keys,
    ShareKeys: secagg.share_keys,
    Unmask: secagg.unmask,
}


def _failure(error: Exception, samples: Samples) -> str:
    """What the server is told. The text of an error may quote data (an odd question has it say a sample's class): where
    data is real it goes to this machine's log alone."""
    if not samples.secret_noise:
        return f"{type(error).__name__}: {error}"
    log.warning("A question could not be answered: %s: %s", type(error).__name__, error)
    return f"{type(error).__name__}; its own log says more"


def answer(task: Task, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """The client's reply, timed. Whatever goes wrong is told in the reply: a client never takes a round down."""
    started = time.perf_counter()
    if not len(samples):
        return Reply(client_id, failure="it has no samples")
    try:
        reply = ANSWERS[type(task)](task, theta, client_id, samples, model)
        if isinstance(task, Summed) and task.bits and reply.vector is not None:
            reply = secagg.masked(task, reply.vector, client_id, samples)
    except (training.Diverged, Unread, Broken) as error:
        reply = Reply(client_id, failure=str(error))
    except Exception as error:
        reply = Reply(client_id, failure=_failure(error, samples))
    return replace(reply, num_examples=len(samples), seconds=time.perf_counter() - started)
