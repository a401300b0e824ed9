"""A metric of training, and how it adds up over microbatches, shards and updates: a `mean` is sum /
weight, and there is none where the weight is 0; a `total` is the sum; a `max` the largest value,
which `sum` holds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Reduction = Literal["mean", "total", "max"]


@partial(jax.tree_util.register_dataclass, data_fields=["sum", "weight"], meta_fields=["reduction"])
@dataclass(frozen=True)
class Metric:
    """Float32 scalars inside a program, floats on the host. `weight` is None unless `reduction` is
    mean."""

    sum: Any
    weight: Any
    reduction: Reduction


Metrics = dict[str, Metric]


def mean(value: Any, weight: Any = None) -> Metric:
    """A value that counts `weight` times in its mean; once where there is no weight."""
    if weight is None:
        return Metric(value, np.float32(1), "mean")
    return Metric(value * weight, weight, "mean")


def total(value: Any) -> Metric:
    return Metric(value, None, "total")


def combine(reduction: Reduction, a: Any, b: Any) -> Any:
    """The sums (or maxima) of two parts together, traced or on the host."""
    if reduction != "max":
        return a + b
    return jnp.maximum(a, b) if isinstance(a, jax.Array) else max(a, b)


def merge(a: Metrics, b: Metrics) -> Metrics:
    """The metrics of two parts together; either may lack some of the names."""
    merged = a | b
    # In the order of the names, never of a set: all processes must trace the same program.
    for name, one in a.items():
        if name in b:
            other = b[name]
            weight = None if one.weight is None else one.weight + other.weight
            merged[name] = Metric(combine(one.reduction, one.sum, other.sum), weight, one.reduction)
    return merged


def merge_in_float32(a: Metrics, b: Metrics) -> Metrics:
    """`merge` on the host in float32, as the fused program adds up the updates of a call."""
    rounded = partial(jax.tree.map, lambda x: float(np.float32(x)))
    return rounded(merge(a, rounded(b)))


def over_updates(metrics: Metrics, token_fraction: Any = None) -> Metrics:
    """The metrics of one update, made such that `merge` over updates gives means and maxima.

    A mean over tokens counts `token_fraction` times, the share (0 to 1) of the batch's tokens that
    the update was taken on; once where it is None. A total becomes a mean over updates, in which
    each counts once.
    """
    weights = {"mean": token_fraction, "total": None}
    of_update = {}
    for name, metric in metrics.items():
        if metric.reduction == "max":
            of_update[name] = metric
        else:
            of_update[name] = mean(value(metric), weights[metric.reduction])
    return of_update


def zero_where(condition: Any, metrics: Metrics) -> Metrics:
    """The metrics, with a sum of 0 where the condition holds; weights stay."""
    return {
        name: replace(metric, sum=jnp.where(condition, 0.0, metric.sum))
        for name, metric in metrics.items()
    }


def value(metric: Metric) -> Any:
    """What a metric comes to."""
    return metric.sum / metric.weight if metric.reduction == "mean" else metric.sum


def values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """What metrics on the host come to; means of weight 0 are left out."""
    return {
        name: float(value(metric))
        for name, metric in metrics.items()
        if metric.weight is None or metric.weight
    }
