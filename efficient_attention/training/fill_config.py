"""A run's config from the values of a config file, with what a fine-tuning config leaves open filled in.

A field that is None is open: those of `model` and `head`, and the tokenizer, come from the checkpoint that
`train.start_from` names; `train.steps` and `optimizer.warmup_steps` from the number of training rows; the names of the
labels from the training files. A run from text to text may leave open the fields of `model`, the tokenizer and the
symbols that texts begin with, which then follow the encoder-decoder that it starts from. The run's config.json has all.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.head import OF_ROWS, POOLED
from efficient_attention.config.nested_dicts import default_fields, from_dict, to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.distillation.teacher import check_vocabularies, open_teacher_model
from efficient_attention.errors import InputError
from efficient_attention.interop.config_fields import OUR_PAIRS, TEXT_TO_TEXT
from efficient_attention.interop.pretrained import Pretrained, check_encoder, open_pretrained
from efficient_attention.interop.target_ids import begin_of, trained_ids
from efficient_attention.interop.tokenizer_files import check_same_vocabulary
from efficient_attention.tasks.encoded_examples import EncodedExamples, load_examples
from efficient_attention.training.initial_params import check_layers, open_start

Values = dict[str, Any]
OF_SMALL = ('layer_heads', 'layer_units', 'quantization', 'float_layers', 'ranks')  # what made the teacher small
OF_WIDTH = ('head_width', 'feed_forward_width', 'embedding_width', 'state_width')  # which follow from it by default


class FilledConfig(NamedTuple):
    """A complete config, and what was read to complete it."""

    config: RunConfig
    examples: EncodedExamples | None = None  # of a fine-tuning run
    pretrained: Pretrained | None = None  # the checkpoint of `train.start_from`, open


def fill_config(values: Mapping[str, Any]) -> FilledConfig:
    """The complete config, with the examples and the checkpoint that were read for it.

    Raises:
        InputError: a field is bad, or the checkpoint, the tokenizer or the files do not serve.
    """
    if values.get('task') == 'text_to_text':
        return fill_text_to_text(values)
    if values.get('task') != 'fine_tuning':
        return FilledConfig(from_dict(values, RunConfig))
    filled = with_open_fields(values, {})
    if filled.get('eval', {}).get('split') == 'test':
        raise InputError(
            "eval.split is 'test'; examples.dev chooses the checkpoint, and `eval.py --split test` tests it"
        )
    from_dict(
        filled.get('distill', {}), DistillConfig, 'distill.'
    ).check_has_teacher()  # a forgotten teacher leaves other fields open as well
    start = filled['train'].get('start_from')
    pretrained = open_start(start, filled['train'].get('start_layers') or '') if start else None
    if pretrained is not None:
        check_encoder(Path(start), pretrained)
        if filled['train'].get('start_layers') and filled['model'].get('layers') is not None:
            check_layers(filled['model']['layers'], pretrained)
    teacher = None if pretrained else first_teacher(filled.get('distill', {}))
    like = pretrained or teacher
    if like is not None and (teacher or filled['train'].get('start_random')):
        fill_of_width(filled['model'], like)
    if teacher is not None:
        fill(filled['model'], {name: default_fields(RunConfig)['model'][name] for name in OF_SMALL})
    fill(filled['model'], to_dict(like.model) if like else default_fields(RunConfig)['model'])
    fill_tokenizer(filled['data'], like)
    fill(filled['examples'], {'has_global': filled['model']['global_tokens'] > 0})
    steps = {'train': {'steps': 1}, 'optimizer': {'warmup_steps': 0}, 'head': default_fields(RunConfig)['head']}
    known = from_dict(with_open_fields(filled, steps), RunConfig)  # checks all that is there before files are read
    check_vocabularies(known)
    if pretrained is not None and not known.train.start_random:
        ours = load_tokenizer(known.data.tokenizer, lowercase=known.data.lowercase).get_vocab()
        check_same_vocabulary(ours, pretrained.tokenizer, Path(start))
    examples = load_examples(known.examples, known.data)
    labels = examples.problem.labels
    is_known = pretrained and pretrained.problem == known.examples.problem and set(pretrained.labels) == set(labels)
    if pretrained and is_known and not known.examples.labels:
        labels = pretrained.labels  # a checkpoint that knows these labels keeps its order of them
        examples = load_examples(dataclasses.replace(known.examples, labels=labels), known.data)
    filled['examples']['labels'] = labels
    fill_head(filled['head'], examples, pretrained)
    fill_steps(filled, examples)
    return FilledConfig(from_dict(filled, RunConfig), examples, pretrained)


def fill_text_to_text(values: Mapping[str, Any]) -> FilledConfig:
    """The config of a run from text to text whose open fields follow `train.start_from`; raises as `fill_config`."""
    filled = with_open_fields(values, {})
    groups = [filled[name] for name in ('model', 'data', 'pairs') if name in filled]
    if not any(value is None for group in groups for value in group.values()):
        return FilledConfig(from_dict(values, RunConfig))
    start = filled['train'].get('start_from')
    pretrained = open_pretrained(Path(start)) if start else None
    fill_tokenizer(filled['data'], pretrained)
    if pretrained is None or pretrained.problem != TEXT_TO_TEXT:
        what = f'{start} holds none' if start else 'there is none'
        raise InputError(f'model is left open, to follow the encoder-decoder of train.start_from; {what}')
    fill(filled['model'], to_dict(pretrained.model))
    fill(filled['data'], {'vocab_size': pretrained.model.vocab_size})
    target = pretrained.target_tokenizer
    fill(filled['pairs'], {'target_tokenizer': '' if target is None else str(target), 'target_vocab_size': 0})
    fill(filled['pairs'], first_pieces(pretrained, Path(filled['data']['tokenizer'])))
    return FilledConfig(from_dict(filled, RunConfig), pretrained=pretrained)


def first_pieces(pretrained: Pretrained, tokenizer: Path) -> Values:
    """`pairs.begin` and `pairs.start` with which an encoder-decoder was trained."""
    if pretrained.pairs:
        return {name: pretrained.pairs.get(name, '') for name in OUR_PAIRS}
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    start = loaded.id_to_token(trained_ids(pretrained, tokenizer).start)
    return {'begin': begin_of(pretrained, loaded), 'start': start or ''}


def config_without_data(values: Mapping[str, Any]) -> RunConfig:
    """The complete config of a run that is only planned.

    Raises:
        InputError: a field is bad, or the sizes of the run follow from training files, or from a checkpoint that is
            not there.
    """
    if values.get('task') == 'text_to_text':
        return fill_text_to_text(values).config
    if values.get('task') == 'fine_tuning':
        raise InputError("task is 'fine_tuning'; its sizes follow from a checkpoint and files, so it is not planned")
    return from_dict(values, RunConfig)


def fill(group: Values, values: Mapping[str, Any]) -> None:
    """Gives the open fields of a group these values."""
    for name, value in values.items():
        if group.get(name) is None:
            group[name] = value


def with_open_fields(values: Mapping[str, Any], stand_ins: Mapping[str, Mapping[str, Any]]) -> Values:
    """A copy of the values whose open fields have stand-ins."""
    copy = {name: dict(group) if isinstance(group, Mapping) else group for name, group in values.items()}
    for name, group in stand_ins.items():
        fill(copy[name], group)
    return copy


def fill_tokenizer(data: Values, pretrained: Pretrained | None) -> None:
    """Gives an open `data.tokenizer` the checkpoint's."""
    if data.get('tokenizer') is not None:
        return
    if pretrained is None or pretrained.tokenizer is None:
        if pretrained is not None:
            raise InputError('data.tokenizer is not given, and train.start_from has none')
        raise InputError(
            'train.start_from is not given, and neither is data.tokenizer: name a checkpoint to begin with, or the '
            'tokenizer of a model that is drawn'
        )
    data['tokenizer'], data['lowercase'] = str(pretrained.tokenizer), pretrained.lowercase


def first_teacher(distill: Values) -> Pretrained | None:
    """The model that a drawn student learns from, or the first of several; None without one."""
    folder = (distill.get('teacher') or '').split(',')[0].strip()
    return open_teacher_model(folder) if folder else None


def fill_of_width(model: Values, like: Pretrained) -> None:
    """Gives a drawn model with another width or other heads than its example what follows from its own ones."""
    if any(model.get(name) not in (None, getattr(like.model, name)) for name in ('width', 'heads')):
        fill(model, {name: default_fields(RunConfig)['model'][name] for name in OF_WIDTH})


def fill_head(head: Values, examples: EncodedExamples, pretrained: Pretrained | None) -> None:
    """Gives the open fields of the head what the problem needs and, where the checkpoint has such a head, its form."""
    task = examples.problem
    needed: Values = {'kind': task.head}
    if task.head in (*OF_ROWS, 'token'):
        needed['outputs'] = task.outputs
    form: Values = {}
    if pretrained is not None:
        form = {name: getattr(pretrained.head, name) for name in ('feed_forward', 'dropout_rate', 'features')}
        form['feed_forward'] = form['feed_forward'] and task.head == 'span'
        if task.head in POOLED:
            form |= {name: getattr(pretrained.head, name) for name in ('transform', 'pooling')}
        if task.config.sentences:
            form['sentence_layers'] = pretrained.head.sentence_layers
    fill(head, needed | form)
    fill(head, default_fields(RunConfig)['head'])


def fill_steps(values: Values, examples: EncodedExamples) -> None:
    """Gives open steps and warm-up their numbers from the training rows."""
    train, optimizer, fields = values['train'], values['optimizer'], values['examples']
    if train.get('steps') is None:
        steps_per_epoch = -(-len(examples.train) // train['batch_size'])
        train['steps'] = max(1, round(fields['epochs'] * steps_per_epoch))
    if optimizer.get('warmup_steps') is None:
        optimizer['warmup_steps'] = round(fields['warmup_share'] * train['steps'])
