"""What is trained with a model's parameters: arrays beside it, such as maps between two widths, and scores of pruning.

One tree of all of it is what the optimizer moves.
"""

from typing import Any, NamedTuple

BESIDE = 'beside'  # what the paths of these arrays begin with, where the model's begin with its parts
SCORES = 'scores'


class Trained(NamedTuple):
    """The parts of what is trained; None where there is none."""

    params: Any
    beside: Any = None  # of an objective
    scores: Any = None  # of pruning


def joined(params: Any, beside: Any = None, scores: Any = None) -> Any:
    """The parts as one tree; the parameters alone where the others are None."""
    others = {BESIDE: beside, SCORES: scores}
    others = {name: tree for name, tree in others.items() if tree is not None}
    return params | others if others else params


def separate(trained: Any) -> Trained:
    """The parts of what `joined` gave."""
    if not isinstance(trained, dict) or not {BESIDE, SCORES} & set(trained):
        return Trained(trained)
    params = {name: group for name, group in trained.items() if name not in (BESIDE, SCORES)}
    return Trained(params, trained.get(BESIDE), trained.get(SCORES))
