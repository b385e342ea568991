"""What accuracy a long-range task gives without reading far: the numbers beside which a model's have to be read.

majority        the class that is most frequent among the training rows
root            ListOps: the class most frequent under the operator of the root, which is one word
root_digits     ListOps: that operator, applied to the digits that stand directly under it
trigrams        bytes: a linear model of the row's byte 3-grams; of two texts of how alike these are
pixels          images: a linear model of the grey values
discs           Pathfinder: the class of most of the training rows whose two discs lie nearest to the row's own
values          recall: the value that the row's pairs have most often, whichever key is asked for
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from efficient_attention.data.arena.arena_row import ArenaRow, ArenaSet
from efficient_attention.data.arena.listops import CLOSE, DIGITS, value_of
from efficient_attention.data.arena.pathfinder import SETTINGS
from efficient_attention.data.arena.recall import values_in

HASHED = 2**16  # columns of the 3-gram counts
PENALTY = 1e-4  # times the squared weights' sum, a row
STEPS = 60  # of L-BFGS
SEEN = 8_000  # training rows of which the places of the discs are looked at
NEAREST = 25  # of them vote
Rows = Sequence[ArenaRow]
Predict = Callable[[Rows], np.ndarray]


def yardsticks(arena_set: ArenaSet, train: Rows, test: Rows) -> dict[str, float]:
    """Name -> accuracy on the test rows, of those that the kind of rows has, learnt from the training rows."""
    labels = np.array([row.label for row in test])
    learned = {name: learn(train) for name, learn in LEARN.get(arena_set.kind, {}).items()}
    predictions = {name: predict(test) for name, predict in ({'majority': majority(train)} | learned).items()}
    return {name: float((guesses == labels).mean()) for name, guesses in predictions.items()}


def names_of(kind: str) -> list[str]:
    """The names of the yardsticks of a kind of rows."""
    return ['majority', *LEARN.get(kind, {})]


def majority(train: Rows) -> Predict:
    """The most frequent class."""
    best = most_frequent([row.label for row in train])
    return lambda rows: np.full(len(rows), best)


def most_frequent(labels: Sequence[int]) -> int:
    """The most frequent of some numbers, the smallest of equals."""
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def by_root(train: Rows) -> Predict:
    """The most frequent class under each root operator."""
    under: dict[int, list[int]] = {}
    for row in train:
        under.setdefault(int(row.texts[0][0]), []).append(row.label)
    best, other = {root: most_frequent(labels) for root, labels in under.items()}, most_frequent([0])
    return lambda rows: np.array([best.get(int(row.texts[0][0]), other) for row in rows])


def by_root_digits(train: Rows) -> Predict:
    """The root operator of its own digits; where it has none, as `by_root`."""
    otherwise = by_root(train)

    def predict(rows: Rows) -> np.ndarray:
        guesses = otherwise(rows)
        for place, row in enumerate(rows):
            if digits := own_digits(row.texts[0]):
                guesses[place] = value_of(int(row.texts[0][0]), digits)
        return guesses

    return predict


def own_digits(text: np.ndarray) -> list[int]:
    """The digits directly under the root of a tree."""
    words = text.astype(np.int64)
    steps = np.where((words >= DIGITS) & (words < CLOSE), 1, 0) - (words == CLOSE)
    return words[(np.cumsum(steps) == 1) & (words < DIGITS)].tolist()


def by_values(train: Rows) -> Predict:
    """The value that stands most often in the row; of a row without one, the most frequent class."""
    otherwise = most_frequent([row.label for row in train])

    def in_text(text: np.ndarray) -> int:
        counts = values_in(text)
        return int(counts.argmax()) if counts.any() else otherwise

    return lambda rows: np.array([in_text(row.texts[0].astype(np.int64)) for row in rows])


def by_trigrams(train: Rows) -> Predict:
    """A linear model of byte 3-grams: of one text its shares, of two the likeness of both."""
    return linear_model(trigram_features, train)


def by_pixels(train: Rows) -> Predict:
    """A linear model of grey values."""
    return linear_model(pixel_features, train)


def pixel_features(rows: Rows) -> scipy.sparse.csr_array:
    """Grey values from 0 to 1, [rows, pixels]."""
    return scipy.sparse.csr_array(np.stack([row.texts[0] for row in rows]) / np.float32(255.0))


def by_discs(train: Rows) -> Predict:
    """A vote of the images whose discs lie most alike; no bar is looked at."""
    train = train[:SEEN]
    tree = scipy.spatial.cKDTree(disc_places(train))
    labels = np.array([row.label for row in train])

    def predict(rows: Rows) -> np.ndarray:
        _, near = tree.query(disc_places(rows), k=min(NEAREST, len(labels)))
        return (labels[near.reshape(len(rows), -1)].mean(axis=1) > 0.5).astype(int)

    return predict


def disc_places(rows: Rows) -> np.ndarray:
    """Rows and columns of both discs, the upper one first: float [rows, 4].

    They lie where the darkest pixel within a disc's radius is brightest; the second outside the first.
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
    """Square roots of the hashed 3-grams' shares, [rows, columns]; of two texts their inner product, [rows, 1]."""
    sides = [_hashed([row.texts[side] for row in rows]) for side in range(len(rows[0].texts))]
    if len(sides) == 1:
        return sides[0]
    return scipy.sparse.csr_array(sides[0].multiply(sides[1]).sum(axis=1).reshape(-1, 1))


def _hashed(texts: Sequence[np.ndarray]) -> scipy.sparse.csr_array:
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
    """Multinomial logistic regression with a small penalty, by L-BFGS."""
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
    'listops': {'root': by_root, 'root_digits': by_root_digits},
    'imdb': {'trigrams': by_trigrams},
    'passages': {'trigrams': by_trigrams},
    'aan': {'trigrams': by_trigrams},
    'cifar10': {'pixels': by_pixels},
    'pathfinder': {'pixels': by_pixels, 'discs': by_discs},
    'recall': {'values': by_values},
}
