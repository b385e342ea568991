"""Computes how accurate simple baselines are on Long Range Arena tasks; the baselines use no long-range context.

majority        the most frequent class of the training rows
root            ListOps: the most frequent class for the root operator, which is one word
root_digits     ListOps: the root operator, applied to the digits directly under it
trigrams        bytes: a linear model of the row's byte 3-grams; for two texts, of the similarity of their 3-grams
pixels          images: a linear model of the grey values
discs           Pathfinder: a vote of the training rows whose two discs are nearest to the discs of the row
values          recall: the most frequent value in the row's pairs, whatever the query
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from efficient_attention.data.arena.associative_recall import value_counts_in_row
from efficient_attention.data.arena.dataset_interface import ArenaDataset, ArenaRow
from efficient_attention.data.arena.listops import CLOSE, DIGITS, evaluate_operator
from efficient_attention.data.arena.pathfinder import SETTINGS

HASHED = 2**16  # number of hash buckets for byte 3-grams, which are the features of a text
PENALTY = 1e-4  # weight of the L2 penalty, which is added to the mean loss per row
STEPS = 60  # maximum number of L-BFGS iterations
SEEN = 8_000  # number of training rows that the baseline `discs` uses
NEAREST = 25  # number of nearest training rows that vote on the class
Rows = Sequence[ArenaRow]
Predict = Callable[[Rows], np.ndarray]


def baseline_accuracies(arena_set: ArenaDataset, train: Rows, test: Rows) -> dict[str, float]:
    """Returns baseline name -> accuracy on the test rows; each baseline is fitted to the training rows."""
    labels = np.array([row.label for row in test])
    learned = {name: learn(train) for name, learn in LEARN.get(arena_set.kind, {}).items()}
    predictions = {
        name: predict(test) for name, predict in ({'majority': majority_class_baseline(train)} | learned).items()
    }
    return {name: float((guesses == labels).mean()) for name, guesses in predictions.items()}


def baseline_names(kind: str) -> list[str]:
    """Returns the names of the baselines for a kind of dataset."""
    return ['majority', *LEARN.get(kind, {})]


def majority_class_baseline(train: Rows) -> Predict:
    """Fits a baseline that always predicts the most frequent class of the training rows."""
    best = most_frequent([row.label for row in train])
    return lambda rows: np.full(len(rows), best)


def most_frequent(labels: Sequence[int]) -> int:
    """Returns the most frequent number of a list; of several equally frequent numbers, the smallest."""
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def root_operator_baseline(train: Rows) -> Predict:
    """Fits a ListOps baseline that predicts the most frequent class of the training rows with the same root
    operator."""
    under: dict[int, list[int]] = {}
    for row in train:
        under.setdefault(int(row.texts[0][0]), []).append(row.label)
    best, other = {root: most_frequent(labels) for root, labels in under.items()}, most_frequent([0])
    return lambda rows: np.array([best.get(int(row.texts[0][0]), other) for row in rows])


def root_digits_baseline(train: Rows) -> Predict:
    """Fits a ListOps baseline that applies the root operator to the digits directly under it. Without such digits, it
    predicts as `root_operator_baseline`."""
    otherwise = root_operator_baseline(train)

    def predict(rows: Rows) -> np.ndarray:
        guesses = otherwise(rows)
        for place, row in enumerate(rows):
            if digits := digits_under_root(row.texts[0]):
                guesses[place] = evaluate_operator(int(row.texts[0][0]), digits)
        return guesses

    return predict


def digits_under_root(text: np.ndarray) -> list[int]:
    """Returns the digits directly under the root operator of a ListOps expression."""
    words = text.astype(np.int64)
    steps = np.where((words >= DIGITS) & (words < CLOSE), 1, 0) - (words == CLOSE)
    return words[(np.cumsum(steps) == 1) & (words < DIGITS)].tolist()


def most_common_value_baseline(train: Rows) -> Predict:
    """Fits a baseline for associative recall that predicts the most frequent value in a row; for a row without values,
    the most frequent class."""
    otherwise = most_frequent([row.label for row in train])

    def in_text(text: np.ndarray) -> int:
        counts = value_counts_in_row(text)
        return int(counts.argmax()) if counts.any() else otherwise

    return lambda rows: np.array([in_text(row.texts[0].astype(np.int64)) for row in rows])


def trigram_baseline(train: Rows) -> Predict:
    """Fits a linear model on byte 3-grams. For single texts, the features are the shares of the 3-grams; for pairs, the
    feature is the similarity of the two texts."""
    return linear_model(trigram_features, train)


def pixel_baseline(train: Rows) -> Predict:
    """Fits a linear model on the grey values of images."""
    return linear_model(pixel_features, train)


def pixel_features(rows: Rows) -> scipy.sparse.csr_array:
    """Returns the grey values of images, scaled to 0 ... 1: [rows, pixels]."""
    return scipy.sparse.csr_array(np.stack([row.texts[0] for row in rows]) / np.float32(255.0))


def disc_position_baseline(train: Rows) -> Predict:
    """Fits a Pathfinder baseline in which the training images with the nearest disc positions vote; it ignores all
    bars."""
    train = train[:SEEN]
    tree = scipy.spatial.cKDTree(disc_places(train))
    labels = np.array([row.label for row in train])

    def predict(rows: Rows) -> np.ndarray:
        _, near = tree.query(disc_places(rows), k=min(NEAREST, len(labels)))
        return (labels[near.reshape(len(rows), -1)].mean(axis=1) > 0.5).astype(int)

    return predict


def disc_places(rows: Rows) -> np.ndarray:
    """Returns the row and column of both discs in each Pathfinder image, the upper disc first: float [rows, 4].

    The first disc is where the darkest pixel within a disc's radius is brightest; the second disc lies outside it.
    """
    places = np.zeros((len(rows), 4))
    for place, row in zip(places, rows, strict=True):
        size = math.isqrt(row.texts[0].size)
        radius = SETTINGS[size].disc_radius
        reach = int(radius)
        down, right = np.mgrid[-reach : reach + 1, -reach : reach + 1]
        padded = np.pad(row.texts[0].reshape(size, size).astype(np.int64), reach)
        around = np.lib.stride_tricks.sliding_window_view(padded, down.shape)[..., down**2 + right**2 <= radius**2]
        brightness = 256 * around.shape[-1] * around.min(axis=-1) + around.sum(axis=-1)
        first = np.unravel_index(brightness.argmax(), brightness.shape)
        apart = np.square(np.indices(brightness.shape).T - first).sum(axis=-1).T
        second = np.unravel_index(np.where(apart < 4 * radius**2, -1, brightness).argmax(), brightness.shape)
        place[:] = np.ravel(sorted([first, second]))
    return places


def trigram_features(rows: Rows) -> scipy.sparse.csr_array:
    """Returns the square roots of the shares of byte 3-grams in each text, [rows, buckets]; for pairs of texts, the
    inner product of these features of both texts, [rows, 1]."""
    sides = [_hashed_trigram_counts([row.texts[side] for row in rows]) for side in range(len(rows[0].texts))]
    if len(sides) == 1:
        return sides[0]
    return scipy.sparse.csr_array(sides[0].multiply(sides[1]).sum(axis=1).reshape(-1, 1))


def _hashed_trigram_counts(texts: Sequence[np.ndarray]) -> scipy.sparse.csr_array:
    columns, values, ends = [], [], [0]
    for text in texts:
        code = text.astype(np.int64)
        grams = (code[:-2] * 65_536 + code[1:-1] * 256 + code[2:]) * 40_503 % 4_294_967_291 % HASHED
        found, counts = np.unique(grams, return_counts=True)
        columns.append(found)
        values.append(np.sqrt(counts / max(len(grams), 1)))
        ends.append(ends[-1] + len(found))
    return scipy.sparse.csr_array((np.concatenate(values), np.concatenate(columns), ends), (len(texts), HASHED))


def linear_model(features: Callable[[Rows], scipy.sparse.csr_array], train: Rows) -> Predict:
    """Fits a multinomial logistic regression with a small L2 penalty by L-BFGS; returns its prediction function."""
    x_RF, labels_R = features(train), np.array([row.label for row in train])
    classes, size = int(labels_R.max()) + 1, x_RF.shape[1] + 1
    wanted_RC = np.eye(classes)[labels_R]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights_FC = flat.reshape(size, classes)
        logits_RC = x_RF @ weights_FC[:-1] + weights_FC[-1]
        logs_RC = logits_RC - scipy.special.logsumexp(logits_RC, axis=1, keepdims=True)
        errors_RC = (np.exp(logs_RC) - wanted_RC) / len(labels_R)
        slope = np.concatenate([x_RF.T @ errors_RC, errors_RC.sum(axis=0)[None]]) + 2 * PENALTY * weights_FC
        mean = -float((logs_RC * wanted_RC).sum()) / len(labels_R)
        return mean + PENALTY * float(np.square(weights_FC).sum()), slope.reshape(-1)

    options = {'maxiter': STEPS}
    found = scipy.optimize.minimize(loss, np.zeros(size * classes), jac=True, method='L-BFGS-B', options=options)
    weights_FC = found.x.reshape(size, classes)
    return lambda rows: np.asarray(features(rows) @ weights_FC[:-1] + weights_FC[-1]).argmax(axis=1)


LEARN: dict[str, dict[str, Callable[[Rows], Predict]]] = {
    'listops': {'root': root_operator_baseline, 'root_digits': root_digits_baseline},
    'imdb': {'trigrams': trigram_baseline},
    'passages': {'trigrams': trigram_baseline},
    'aan': {'trigrams': trigram_baseline},
    'cifar10': {'pixels': pixel_baseline},
    'pathfinder': {'pixels': pixel_baseline, 'discs': disc_position_baseline},
    'recall': {'values': most_common_value_baseline},
}
