"""Tests that every config's parameter count and first losses equal the recorded ones.

tests/recorded_numbers.json holds these numbers, and the losses and metrics of tests/tasks/test_one_step.py. Whoever
changes numbers on purpose records them again, all of them or only the named kinds:

    python -m tests.test_recorded_numbers [parameters] [losses] [tasks]

The commit then says which numbers changed and why. The losses come from three steps on three batches of small data,
with a float32 model of width 16. The config's own dropout, sharing, norms, update rule and clipping are kept; the
learning rate and the initial weights are larger (tests/shrunk_configs.py).

Every config file is recorded. Configs in `REPEATED` are marked slow, because another config or
tests/tasks/test_one_step.py covers their mechanism or task. If arguments only change a model's size or name files, one
of them is recorded. The four files of small decoders share their mechanisms (`SMALL_DECODERS`), so each mechanism is
recorded once, in one of the four.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from configs.lm.common import SMALL_DECODERS
from efficient_attention.training.run import build_run
from efficient_attention.training.step import jit_train_step
from tests.quick_compile import FLAGS
from tests.recorded import PATH, assert_recorded, recorded
from tests.shrunk_configs import shrunk_config
from tests.tasks.test_one_step import TASKS, three_steps
from tests.test_configs import NAMES, parameter_count, variants
from tests.training.tiny_run import one_by_one

# Optax mixes Python floats with int32 counts, which strict promotion refuses
pytestmark = pytest.mark.lenient_promotion

# config: the arguments whose losses are recorded; a config that is missing here has one set of losses
ARGUMENTS = {
    'configs.arena': ('listops_short', 'passages'),
    'configs.distill.distilbert': ('books',),
    'configs.finetune.choice': ('swag',),
    'configs.finetune.glue': ('cola',),
    'configs.finetune.han': ('han', 'flat'),  # 'mean' differs only in its pooling, which 'flat' covers
    'configs.finetune.imdb': ('short',),
    'configs.finetune.squad': ('v1',),  # 'v2' differs only in its evaluation
    'configs.finetune.table': ('classification', 'regression'),
    'configs.finetune.tags': ('wnut17',),
    'configs.lm.books_characters': ('full', 'window', 'gru', 'compressive'),
    'configs.lm.books_pieces': ('full',),
    'configs.lm.books_words': ('favor', 'transformer_xl', 'sru'),
    'configs.lm.cifar10_small': ('strided', 'fixed'),
    'configs.lm.enwik8_small': ('lsh', 'reformer', 'full_shared', 'lstm'),
    'configs.lm.gpt': ('small',),
    'configs.lm.in_context': ('full',),
    'configs.lm.performer': ('regular',),
    'configs.lm.reformer': ('enwik8', 'imagenet64'),
    'configs.lm.sparse_transformer': ('enwik8', 'cifar10'),
    'configs.lm.transformer_xl': ('enwik8_12', 'wikitext103_large'),
    'configs.pretrain.books_long': ('full', 'window', 'bigbird', 'performer', 'reformer', 'full_shared'),
    'configs.prune.glue': (
        'cola_l0',
    ),  # With so few scores, rounding decides which ones movement pruning keeps, and it differs between hosts.
    'configs.prune.squad': ('movement_15',),
    'configs.text_to_text.bart': ('base',),
    'configs.text_to_text.books': ('t5',),
    'configs.text_to_text.glue': ('sst2',),
    'configs.text_to_text.multi30k_joined': ('window',),
    'configs.text_to_text.multi30k_recurrent': ('bahdanau', 'no-attention', 'luong-feeding', 'sru'),
    'configs.text_to_text.t5': ('v1_1-small',),
    'configs.text_to_text.wmt14': ('base',),
}
REPEATED = {
    'configs.arena': ('listops_short',),
    'configs.distill.distilbert': ('books',),
    'configs.finetune.choice': ('swag',),
    'configs.finetune.glue': ('cola',),
    'configs.finetune.han': ('flat',),
    'configs.finetune.hotpotqa': ('',),
    'configs.finetune.imdb': ('short',),
    'configs.finetune.squad': ('v1',),
    'configs.finetune.table': ('classification', 'regression'),
    'configs.finetune.tags': ('wnut17',),
    'configs.lm.arithmetic': ('',),
    'configs.lm.books_characters': ('gru', 'full', 'window'),
    'configs.lm.books_pieces': ('full',),
    'configs.lm.books_words': ('favor', 'transformer_xl', 'sru'),
    'configs.lm.cifar10_small': ('strided', 'fixed'),
    'configs.lm.enwik8_small': ('lsh', 'reformer', 'lstm'),
    'configs.lm.in_context': ('full',),
    'configs.lm.reformer': ('imagenet64',),
    'configs.lm.sparse_transformer': ('cifar10',),
    'configs.lm.transformer_xl': ('enwik8_12',),
    'configs.pretrain.albert': ('',),
    'configs.pretrain.bert': ('',),
    'configs.pretrain.books_albert': ('',),
    'configs.pretrain.books_bert': ('',),
    'configs.pretrain.books_long': ('full', 'window', 'bigbird', 'performer', 'reformer', 'full_shared'),
    'configs.pretrain.performer': ('',),
    'configs.pretrain.reformer': ('',),
    'configs.text_to_text.bart': ('base',),
    'configs.text_to_text.books': ('t5',),
    'configs.text_to_text.glue': ('sst2',),
    'configs.text_to_text.multi30k_joined': ('window',),
    'configs.text_to_text.multi30k_recurrent': ('no-attention', 'luong-feeding', 'sru'),
    'configs.text_to_text.t5': ('v1_1-small',),
    'configs.text_to_text.toy': ('',),
    'configs.text_to_text.wmt14': ('base',),
}
LOSSES = [(name, argument) for name in NAMES for argument in ARGUMENTS.get(name, ('',))]


def title(name: str, argument: str) -> str:
    """Returns a config's name as on the command line."""
    return f'{name.replace(".", "/")}.py' + (f':{argument}' if argument else '')


def losses(name: str, argument: str, folder: Path) -> list[float]:
    """Returns the losses of the first three steps of a shrunk config."""
    run = build_run(shrunk_config(name, argument, folder), jax.devices()[:1])
    state, step, found = one_by_one(run), jit_train_step(run), []
    for batch, _ in zip(run.task.training_batches(0, 3, 0, 1), range(3), strict=False):
        state, metrics = step(state, run.put_batch_on_devices(batch))
        found.append(float(metrics['loss']))
    return found


@pytest.mark.parametrize('name, argument', [(name, argument) for name in NAMES for argument in variants(name)])
def test_parameters_of_a_config(name: str, argument: str):
    assert parameter_count(name, argument) == recorded()['parameters'][title(name, argument)]


@pytest.mark.parametrize(
    'name, argument',
    [pytest.param(*one, marks=[pytest.mark.slow] if one[1] in REPEATED.get(one[0], ()) else []) for one in LOSSES],
)
def test_first_losses_of_a_config(tmp_path: Path, name: str, argument: str):
    assert_recorded('losses', title(name, argument), losses(name, argument, tmp_path))


def test_nothing_else_is_recorded():
    known = {'parameters': [title(name, argument) for name in NAMES for argument in variants(name)]}
    known |= {'losses': [title(*one) for one in LOSSES], 'tasks': list(TASKS)}
    assert {kind: set(numbers) for kind, numbers in recorded().items()} == {k: set(v) for k, v in known.items()}


def test_every_mechanism_of_the_small_decoders_has_its_losses():
    small = [name for name in ARGUMENTS if hasattr(importlib.import_module(name), 'small_decoder_config')]
    assert set(SMALL_DECODERS) | {'strided'} == {argument for name in small for argument in ARGUMENTS[name]}


# ---- recording ----


def in_a_folder(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the function's result for these arguments and a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return function(*arguments, Path(folder))


def record(kind: str) -> dict[str, Any]:
    """Computes all numbers of one kind anew."""
    if kind == 'parameters':
        return {title(name, one): parameter_count(name, one) for name in NAMES for one in variants(name)}
    if kind == 'losses':
        return {title(*one): in_a_folder(losses, *one) for one in LOSSES}
    return {name: in_a_folder(three_steps, name)[0] for name in TASKS}


def rounded(numbers: Any) -> Any:
    """Returns the numbers rounded to eight digits, which is more precise than float32."""
    return jax.tree.map(lambda number: float(f'{number:.8g}') if isinstance(number, float) else number, numbers)


def main() -> None:
    """Writes recorded_numbers.json anew, and prints the numbers that have changed."""
    os.environ['XLA_FLAGS'] = FLAGS
    jax.config.update('jax_platforms', 'cpu')
    kinds = sys.argv[1:] or ['parameters', 'losses', 'tasks']
    before = json.loads(PATH.read_text(encoding='utf-8')) if PATH.exists() else {}
    after = before | {kind: rounded(record(kind)) for kind in kinds}
    for kind in kinds:
        for name, numbers in after[kind].items():
            old = before.get(kind, {}).get(name)
            print('' if old == numbers else f'{kind} {name}: {old} -> {numbers}', end='' if old == numbers else '\n')
    PATH.write_text(json.dumps(after, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
