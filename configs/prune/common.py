"""Sets a config's pruning fields from the name of a method, which is part of the pruning configs' argument."""

from typing import Any

from ml_collections import ConfigDict

from configs.common import set_fields

THIRD: dict[str, Any] = {'attention': 'head', 'keep_attention': 0.5, 'feed_forward': 'unit', 'keep': 0.25}
# The learning rate of L0's scores is from Sanh et al. 2020, arXiv 2005.07683.
OF_PENALTIES: dict[str, dict[str, float]] = {
    'soft_movement': {'penalty': 400.0},
    'l0': {'penalty': 125.0, 'learning_rate': 1e-1},
}


def set_pruning(config: ConfigDict, method: str) -> bool:
    """Sets a config's pruning fields from a name such as 'movement_15' or 'l0'; returns False for unknown names."""
    name, _, percentage = method.rpartition('_')
    if method in OF_PENALTIES:
        set_fields(config.prune, {'method': method, **OF_PENALTIES[method]})
    elif name == 'third' and percentage in ('magnitude', 'movement', 'random'):
        set_fields(config.prune, {'method': percentage, **THIRD})
    elif name in ('magnitude', 'movement', 'random') and percentage.isdecimal() and 0 < int(percentage) < 100:
        set_fields(config.prune, {'method': name, 'keep': int(percentage) / 100})
    else:
        return False
    return True
