"""Writes the notes that a run prints before its first step, about settings that are allowed but rarely intended."""

from efficient_attention.config.prune import PENALISED, WEIGHT
from efficient_attention.config.run import RunConfig
from efficient_attention.training.run import Run

FEW_STEPS = 20  # A note is printed if a pruning schedule has fewer steps than this.
# A note is printed if one step prunes more than this share of the weights.
# When each step pruned a share of 0.0042, movement pruning collapsed to a constant answer
# (docs/results/compression.md).
# Sanh et al. 2020 (arXiv 2005.07683) prune a share of at most 0.0001 per step.
FAST_PRUNING = 0.001


def unusual_setting_notes(run: Run, *, is_complete: bool = False) -> list[str]:
    """Returns notes on unusual settings of a run: its warm-up, pruning, quantization, batch size and validation set,
    and notes of its task.

    A complete run gets only the notes on its validation set and its task. This also saves planning all training rows,
    which the note on the batch size needs.
    """
    notes = []
    if not is_complete:
        notes += warmup_note(run.config)
        notes += pruning_note(run.config)
        notes += movement_pruning_note(run.config)
        notes += quantization_note(run.config)
        notes += batch_note(run)
    return [*notes, *no_evaluation_note(run.config), *run.task.notes]


def warmup_note(config: RunConfig) -> list[str]:
    """Returns a note if the run ends before its learning-rate warm-up does."""
    steps, warmup = config.train.steps, config.optimizer.warmup_steps
    if steps > warmup:
        return []
    return [
        f'this run ends in its warm-up and learns little: train.steps is {steps:,}, optimizer.warmup_steps '
        f'{warmup:,}; shorten it, such as --config.optimizer.warmup_steps={steps // 10}'
    ]


def pruning_note(config: RunConfig) -> list[str]:
    """Returns a note if pruning happens in so few steps that the remaining weights cannot adapt."""
    prune, steps = config.prune, config.train.steps
    between = prune.final_step(steps) - round(prune.begin * steps)
    if not prune.has_schedule or prune.begin == prune.end or between >= FEW_STEPS:
        return []
    when = f'within {between} of {steps:,} steps (prune.begin {prune.begin}, prune.end {prune.end})'
    if prune.method in PENALISED:
        return [f'the penalty reaches its full weight {when}; longer runs remove more']
    return [f'all pruning happens {when}; longer runs lose less accuracy']


def movement_pruning_note(config: RunConfig) -> list[str]:
    """Returns a note if movement pruning is so fast that the model may collapse to one answer for all rows."""
    prune, steps = config.prune, config.train.steps
    if prune.method != 'movement' or WEIGHT not in (prune.attention, prune.feed_forward):
        return []
    between = max(prune.final_step(steps) - round(prune.begin * steps), 1)
    # The cubic pruning schedule is steepest at its beginning.
    steepest = min(3 * (1 - prune.keep) / between, 1 - prune.keep)
    if steepest <= FAST_PRUNING:
        return []
    return [
        f'movement pruning removes up to {steepest:.2%} of the weights in a step; runs this short have ended at one '
        'answer for all rows (docs/compression.md): train longer, or take prune.method magnitude or soft_movement'
    ]


def quantization_note(config: RunConfig) -> list[str]:
    """Returns a note if training rounds kernels to 8 bits, because a checkpoint's config may have turned this on
    unnoticed.
    """
    if config.model.quantization == 'none':
        return []
    return [f"kernels are rounded in training: model.quantization is {config.model.quantization!r}; 'none' leaves them"]


def batch_note(run: Run) -> list[str]:
    """Returns a note if a batch has more rows than the training set, because batches then repeat rows or are partly
    empty.
    """
    size, rows = run.config.train.batch_size, run.task.rows_per_epoch()
    if rows is None or size <= rows:
        return []
    if run.task.has_short_batches:
        return [
            f'each batch is partly empty: train.batch_size is {size:,}, the data has {rows:,} rows; '
            'lower train.batch_size, since empty rows take time and teach nothing'
        ]
    return [
        f'each batch reads the training data more than once: train.batch_size is {size:,}, '
        f'the data has {rows:,} rows of {run.config.data.length:,} tokens'
    ]


def no_evaluation_note(config: RunConfig) -> list[str]:
    """Returns a note if the run has no validation set, so that nothing is evaluated."""
    if config.has_evaluation_data:
        return []
    field = 'pairs.held_out is empty' if config.task == 'text_to_text' and not config.has_noise else 'data.held_out=0'
    return [f'no text is held out ({field}): nothing is evaluated, and no checkpoint is the best one']
