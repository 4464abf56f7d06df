"""Cross-validated heads on features of scenes: ridge regression, and two layers. Used by `probe`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import nn

from ..core.domain import Array

FOLDS = 5  # of consecutive scenes, so that few towns are in two
FEATURE_WEIGHTS = (0.3, 3.0)  # of a network's features, relative to the inputs
PENALTIES = (0.1, 1.0, 10.0, 100.0)  # of ridge regression, relative to the mean square of a scene's inputs
COMPONENTS, HIDDEN = 200, 128  # of the two layers: principal components that they read, hidden units
EPOCHS, BATCH, VALIDATION_SHARE = 25, 128, 0.125  # of a training fold
BOOTSTRAP_SAMPLES = 1000
BLOCK = 20_000  # columns of features that are standardised at a time

Fit = Callable[[Array, Array, Array], Iterator[Array]]  # kernel (N, N), targets (N, M), is_test (N,) -> predictions


def predict(inputs: Array, added: Array | None, targets: Array, fit: Fit) -> Array:
    """(N, M) predictions of targets (N, M), each scene by a head that did not see its fold; of weights and penalties,
    the best for each target on the same folds. Targets that are NaN are left out.

    inputs (N, I) are read by all heads; `added` (N, N) is the kernel of the features of a network (`kernel_of`), or
    None.
    """
    best, least = np.full(targets.shape, np.nan), np.full(targets.shape[1], np.inf)
    fold = np.arange(len(targets)) * FOLDS // len(targets)
    for kernel in _kernels(inputs, added):
        folds = [list(fit(kernel, targets, fold == index)) for index in range(FOLDS)]
        for each in zip(*folds, strict=True):
            predictions = np.concatenate(each)
            error = _mean((predictions - targets) ** 2)
            best[:, error < least] = predictions[:, error < least]
            least = np.minimum(least, error)
    return best


def _kernels(inputs: Array, added: Array | None) -> Iterator[Array]:
    own = kernel_of(inputs)
    if added is None:
        yield own
        return
    for weight in FEATURE_WEIGHTS:
        yield own + weight * added


def kernel_of(x: Array) -> Array:
    """(N, N) inner products of standardised columns of x (N, F); 1 on the diagonal, on average."""
    products = np.zeros((len(x), len(x)))
    for first in range(0, x.shape[1], BLOCK):
        columns = x[:, first : first + BLOCK].astype(np.promote_types(x.dtype, np.float32))
        columns = (columns - columns.mean(0)) / (columns.std(0) + 1e-6)
        products += columns @ columns.T
    return np.asarray(products / np.trace(products) * len(x))


def ridge(kernel: Array, targets: Array, is_test: Array) -> Iterator[Array]:
    """Predictions (test, M) by ridge regression, for each of PENALTIES."""
    has_target = np.isfinite(targets)
    groups, group_of = np.unique(has_target, axis=1, return_inverse=True)  # of targets that the same scenes have
    predictions = np.full((len(PENALTIES), int(is_test.sum()), targets.shape[1]), np.nan)
    for group in range(groups.shape[1]):
        rows, columns = groups[:, group] & ~is_test, np.flatnonzero(group_of.ravel() == group)
        if not rows.any():
            continue
        mean = targets[np.ix_(rows, columns)].mean(0)
        of_training, of_test = kernel[np.ix_(rows, rows)], kernel[np.ix_(is_test, rows)]
        for index, penalty in enumerate(PENALTIES):
            regularised = of_training + penalty * np.eye(len(of_training))
            weights = np.linalg.solve(regularised, targets[np.ix_(rows, columns)] - mean)
            predictions[index][:, columns] = of_test @ weights + mean
    yield from predictions


def two_layers(kernel: Array, targets: Array, is_test: Array) -> Iterator[Array]:
    """Predictions (test, M) by a network of two layers, of the epoch with the least error on VALIDATION_SHARE of the
    training scenes. Random numbers have seed 0."""
    values, vectors = eigsh(kernel, min(COMPONENTS, len(kernel) - 1), v0=np.ones(len(kernel)))
    inputs = torch.from_numpy(vectors * np.sqrt(np.maximum(values, 0.0))).float()
    mean = np.nan_to_num(_mean(targets[~is_test]))
    std = np.sqrt(np.nan_to_num(_mean((targets[~is_test] - mean) ** 2))) + 1e-9
    standardised = torch.from_numpy((targets - mean) / std).float()
    generator = torch.Generator().manual_seed(0)
    order = torch.from_numpy(np.flatnonzero(~is_test))[torch.randperm(int((~is_test).sum()), generator=generator)]
    validation, training = order.tensor_split([int(VALIDATION_SHARE * len(order))])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(inputs.shape[1], HIDDEN), nn.GELU(), nn.Dropout(0.3), nn.Linear(HIDDEN, targets.shape[1])
        )
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
        least, best = float("inf"), torch.zeros(0)
        for _ in range(EPOCHS):
            net.train()
            for rows in torch.split(training[torch.randperm(len(training), generator=generator)], BATCH):
                optimizer.zero_grad()
                torch.autograd.backward(_error(net(inputs[rows]), standardised[rows]))
                optimizer.step()
            net.eval()
            with torch.no_grad():
                error = float(_error(net(inputs[validation]), standardised[validation]))
                if error < least:
                    least, best = error, net(inputs[torch.from_numpy(is_test)])
    yield best.numpy() * std + mean


def _error(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error over the targets that are not NaN."""
    has_target = torch.isfinite(targets)
    return ((predictions - targets.nan_to_num()) ** 2 * has_target).sum() / has_target.sum().clamp(min=1)


def share_intervals(targets: Array, predictions: Array) -> Array:
    """(M, 3) share of the variance of targets (N, M) that predictions (N, M) explain, and the ends of its interval;
    below 0 where they are worse than the mean."""
    return intervals(lambda rows: shares(targets[rows], predictions[rows]), len(targets))


def shares(targets: Array, predictions: Array) -> Array:
    """(M,) share of the variance of targets (N, M) that predictions (N, M) explain."""
    return np.asarray(1.0 - ((predictions - targets) ** 2).mean(0) / targets.var(0))


def error_intervals(targets: Array, predictions: Array) -> Array:
    """(M, 3) mean absolute errors of predictions (N, M), without targets of NaN, and ends of their intervals."""
    errors = np.abs(predictions - targets)
    return intervals(lambda rows: _mean(errors[rows]), len(targets))


def _mean(x: Array) -> Array:
    """(M,) mean over the rows of x (N, M) that are not NaN; NaN where all are."""
    has_value = np.isfinite(x)
    return np.asarray(np.where(has_value, x, 0.0).sum(0) / np.where(has_value.any(0), has_value.sum(0), np.nan))


def intervals(measure: Callable[[Array], Array], count: int) -> Array:
    """(M, 3) of a measure (M,) of scenes, and the ends of its 95 % bootstrap interval over scenes."""
    generator = np.random.default_rng(0)
    samples = [measure(rows) for rows in generator.integers(0, count, (BOOTSTRAP_SAMPLES, count))]
    return np.column_stack([measure(np.arange(count)), *np.percentile(samples, (2.5, 97.5), axis=0)])
