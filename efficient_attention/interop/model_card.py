"""Writes the model card of an exported folder: README.md with the metadata that the Hugging Face hub reads.

The card has only facts that the workdir or the folder records: data, config, metrics and their protocol, and limits.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import efficient_attention
from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, TEXT_TO_TEXT
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.interop.workdir_import import parse_requested_checkpoint
from efficient_attention.workdir.checkpoint_average import AverageChoice
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.metrics import SPEEDS

CARD = 'README.md'
NO_METRICS: Mapping[str, float] = {}
# kind of model -> the hub's name of the task; these names are also names of pipelines, except regression
TASKS = {
    'classification': 'text-classification',
    'regression': 'text-classification',
    'token_classification': 'token-classification',
    'multiple_choice': 'multiple-choice',
    'question_answering': 'question-answering',
    'multi_hop': 'question-answering',
    'fill_mask': 'fill-mask',
    TEXT_TO_TEXT: 'text2text-generation',
    LANGUAGE_MODELLING: 'text-generation',
    'none': 'feature-extraction',
}


def write_model_card(folder: Path, model: Pretrained, **facts: Any) -> None:
    """Writes README.md into the folder of a finished export; `facts` are the other arguments of `model_card`."""
    write_atomically(folder / CARD, model_card(folder.name, model, **facts))


def checkpoint_metrics(workdir: Path, config: RunConfig, checkpoint: str = '') -> dict[str, float]:
    """Returns the step and the finite metrics of a checkpoint's evaluation.

    The result is {} if the checkpoint was not evaluated, or is an average of checkpoints. For arguments and errors see
    `workdir_params`.
    """
    reader = CheckpointReader(workdir)
    wanted = parse_requested_checkpoint(reader, config, checkpoint)
    if isinstance(wanted, AverageChoice):
        return {}
    step = reader.resolve_step(wanted)
    found = {name: value for name, value in reader.metrics_of_step(step).items() if name not in {'step', *SPEEDS}}
    return {'step': step, **{name: value for name, value in found.items() if math.isfinite(value)}} if found else {}


def model_card(
    name: str,
    model: Pretrained,
    *,
    origin: str,
    license_name: str = '',
    metrics: Mapping[str, float] = NO_METRICS,
    is_changed: bool = False,
    is_native: bool = False,
) -> str:
    """Returns the text of a model card.

    Args:
        name: the name of the exported model.
        model: the exported model.
        origin: a short text that says where the parameters come from.
        license_name: the hub's name of the license, such as 'apache-2.0'; '' = unknown.
        metrics: the metrics of the source checkpoint, from `checkpoint_metrics`.
        is_changed: whether the export changed the model, so that the metrics are not the exported model's.
        is_native: whether the folder is a compact export, which transformers cannot load.
    """
    numbers = {key: value for key, value in metrics.items() if key != 'step'}
    values: dict[str, Any] = {'license': license_name or 'unknown'}
    values['library_name'] = 'efficient-attention' if is_native else 'transformers'
    values |= {'pipeline_tag': TASKS.get(model.problem, 'feature-extraction'), 'tags': ['efficient-attention']}
    if numbers and not is_changed:
        values['model-index'] = model_index(name, model, numbers)
    sections = ['\n'.join(['---', *(f'{key}: {json.dumps(value)}' for key, value in values.items()), '---'])]
    sections += [f'# {name}', summary_text(model, origin), '## Data', data_text(model)]
    sections += ['## Metrics', metrics_text(model, metrics, is_changed), '## Limits', limits_text(model)]
    if model.run is not None:
        config = json.dumps(to_dict(model.run), indent=1, ensure_ascii=False)
        sections += ['## Config', f'<details><summary>config.json of the run</summary>\n\n```json\n{config}\n```\n']
        sections += ['</details>']
    return '\n\n'.join(sections) + '\n'


def model_index(name: str, model: Pretrained, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns the metrics as the metadata `model-index` of a card; the hub shows them as the model's own."""
    data = evaluated_data(model)
    result = {
        'task': {'type': TASKS.get(model.problem, 'feature-extraction')},
        'dataset': {'name': data, 'type': data},
        'metrics': [{'type': key, 'name': key, 'value': value} for key, value in metrics.items()],
    }
    return [{'name': name, 'results': [result]}]


def summary_text(model: Pretrained, origin: str) -> str:
    """Returns sentences on the kind of model, its sizes and its origin."""
    config = model.model
    problem = {'none': 'an encoder without a head'}.get(model.problem, f'a model for {model.problem.replace("_", " ")}')
    lines = [
        f'This is {problem}, exported by efficient-attention {efficient_attention.__version__} from `{origin}`.',
        f'It has {config.layers} layers of width {config.width}, {config.heads} heads, and the attention '
        f'`{config.attention}`.',
    ]
    if model.labels:
        lines.append(f'Its labels are {", ".join(model.labels)}.')
    if model.run is not None and model.run.train.start_from:
        lines.append(f'Training started from the checkpoint `{model.run.train.start_from}`.')
    return ' '.join(lines)


def data_text(model: Pretrained) -> str:
    """Returns sentences on the training and evaluation data and on the tokenizer, as the run's config names them."""
    run = model.run
    if run is None:
        return 'The folder that was converted does not record the training data.'
    if run.task == 'fine_tuning':
        train = run.examples.train or f'{run.examples.format} {run.examples.name}'.strip()
    elif run.task == TEXT_TO_TEXT and run.pairs.train:
        train = run.pairs.train
    else:
        train = run.data.source
    case = 'lower-cased' if run.data.lowercase else 'not lower-cased'
    return (
        f'Trained for {run.train.steps:,} steps of {run.train.batch_size} rows, at most {run.data.length} tokens each, '
        f'on `{train}`. Evaluated on {evaluated_data(model)}. Tokenizer: `{run.data.tokenizer}`; text is {case}.'
    )


def evaluated_data(model: Pretrained) -> str:
    """Returns the name of the evaluation data, as the run's config names it."""
    run = model.run
    if run is None:
        return 'unknown'
    if run.task == 'fine_tuning':
        return run.examples.dev or f'{run.examples.format} {run.examples.name}'.strip()
    if run.task == TEXT_TO_TEXT and run.pairs.train:
        return run.pairs.held_out or 'nothing'
    return f'{run.data.held_out:g} of {run.data.source}'


def metrics_text(model: Pretrained, metrics: Mapping[str, float], is_changed: bool) -> str:
    """Returns a table of metrics and their protocol; in prose, if they are only the source checkpoint's."""
    numbers = {name: value for name, value in metrics.items() if name != 'step'}
    if not numbers or model.run is None:
        return 'No metrics of these parameters are recorded.'
    best = model.run.checkpoint.best_metric
    chosen = (
        f'The run chooses its best checkpoint by {best} on the same data, so this value is optimistic. ' if best else ''
    )
    protocol = (
        f'Protocol: one evaluation by the training run after step {metrics["step"]:,}, with seed '
        f'{model.run.train.seed}, before the conversion. {windows_text(model.run)}{chosen}'
    )
    if is_changed:
        values = ', '.join(f'{name} {value:.6g}' for name, value in numbers.items())
        return (
            'No metrics of this model are recorded, because the conversion changed the model. '
            f'The source checkpoint had, before the change: {values}. {protocol}'
        ).strip()
    table = ['| metric | value |', '|---|---|', *(f'| {name} | {value:.6g} |' for name, value in numbers.items())]
    return '\n'.join([*table, '', f'{protocol}The conversion itself was not evaluated.'])


def windows_text(run: RunConfig) -> str:
    """Returns a sentence on a language model's evaluation split and windows; '' for other tasks."""
    if run.task != 'language_modelling':
        return ''
    context = run.eval.context or run.data.length
    return f'Split `{run.eval.split}`, windows of {context} tokens, stride {run.eval.stride or context}. '


def limits_text(model: Pretrained) -> str:
    """Returns a list of limits: row length, conversions that lose precision, and what was not measured."""
    limit = model.model.position_limit
    lines = [f'- Rows have at most {limit} tokens.' if limit else '- The number of positions is not limited.']
    if model.model.quantization != 'none':
        lines.append(f'- Parameters are rounded to 8 bits (`{model.model.quantization}`).')
    if model.model.ranks:
        lines.append(f'- Matrices are replaced by low-rank factors ({", ".join(model.model.ranks)}).')
    if model.thresholds():
        lines.append('- Decision thresholds were chosen on the evaluation data.')
    lines.append('- Bias, safety and other data than the above were not measured.')
    return '\n'.join(lines)
