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
from efficient_attention.interop.config_json_keys import TEXT_TO_TEXT
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.interop.workdir_import import parse_requested_checkpoint
from efficient_attention.workdir.checkpoint_average import AverageChoice
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.metrics import SPEEDS

CARD = 'README.md'
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
    'none': 'feature-extraction',
}


def write_model_card(
    folder: Path, model: Pretrained, *, origin: str, license_name: str = '', metrics: Mapping[str, float] | None = None
) -> None:
    """Writes README.md into the folder of an exported model.

    Args:
        folder: the finished export.
        model: the exported model.
        origin: a short text that says where the parameters come from.
        license_name: the hub's name of the license, such as 'apache-2.0'; '' = unknown.
        metrics: the metrics of the exported checkpoint, from `checkpoint_metrics`.
    """
    write_atomically(folder / CARD, model_card(folder.name, model, origin, license_name, metrics or {}))


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


def model_card(name: str, model: Pretrained, origin: str, license_name: str, metrics: Mapping[str, float]) -> str:
    """Returns the text of a model card; the arguments are the same as for `write_model_card`."""
    sections = [front_matter(name, model, license_name, metrics), f'# {name}', summary_text(model, origin)]
    sections += ['## Data', data_text(model), '## Metrics', metrics_text(model, metrics)]
    sections += ['## Limits', limits_text(model)]
    if model.run is not None:
        config = json.dumps(to_dict(model.run), indent=1, ensure_ascii=False)
        sections += ['## Config', f'<details><summary>config.json of the run</summary>\n\n```json\n{config}\n```\n']
        sections += ['</details>']
    return '\n\n'.join(sections) + '\n'


def front_matter(name: str, model: Pretrained, license_name: str, metrics: Mapping[str, float]) -> str:
    """Returns the YAML metadata of a card; JSON values are valid YAML."""
    values: dict[str, Any] = {'license': license_name or 'unknown', 'library_name': 'transformers'}
    values |= {'pipeline_tag': TASKS.get(model.problem, 'feature-extraction'), 'tags': ['efficient-attention']}
    if numbers := {key: value for key, value in metrics.items() if key != 'step'}:
        data = evaluated_data(model)
        result = {
            'task': {'type': values['pipeline_tag']},
            'dataset': {'name': data, 'type': data},
            'metrics': [{'type': key, 'name': key, 'value': value} for key, value in numbers.items()],
        }
        values['model-index'] = [{'name': name, 'results': [result]}]
    return '\n'.join(['---', *(f'{key}: {json.dumps(value)}' for key, value in values.items()), '---'])


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


def metrics_text(model: Pretrained, metrics: Mapping[str, float]) -> str:
    """Returns a table of metrics, and the protocol by which they were measured."""
    numbers = {name: value for name, value in metrics.items() if name != 'step'}
    if not numbers or model.run is None:
        return 'No metrics of these parameters are recorded.'
    table = ['| metric | value |', '|---|---|', *(f'| {name} | {value:.6g} |' for name, value in numbers.items())]
    best = model.run.checkpoint.best_metric
    chosen = (
        f'The run chooses its best checkpoint by {best} on the same data, so this value is optimistic. ' if best else ''
    )
    protocol = (
        f'Protocol: one evaluation by the training run after step {metrics["step"]:,}, with seed '
        f'{model.run.train.seed}, before the conversion. {chosen}The conversion itself was not evaluated.'
    )
    return '\n'.join([*table, '', protocol])


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
