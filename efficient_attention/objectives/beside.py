"""What is trained beside a model, such as maps between two models' widths: one tree with its parameters, or two."""

from typing import Any

BESIDE = 'beside'  # what the paths of these arrays begin with, where the model's begin with its parts


def joined(params: Any, beside: Any) -> Any:
    """A model's parameters and what is trained beside them as one tree; the parameters alone where that is None."""
    return params if beside is None else params | {BESIDE: beside}


def separate(trained: Any) -> tuple[Any, Any]:
    """The parts of what `joined` gave."""
    if not isinstance(trained, dict) or BESIDE not in trained:
        return trained, None
    return {name: group for name, group in trained.items() if name != BESIDE}, trained[BESIDE]
