"""Completes the values of a config file to the full config of a run, by filling every field that is None.

In a fine-tuning config, these fields may be None:

- fields of `model` and `head`, and the tokenizer: taken from the checkpoint that `train.start_from` names
- `train.steps` and `optimizer.warmup_steps`: computed from the number of training rows
- the names of the labels: read from the training files

In a text-to-text config, the fields of `model`, the tokenizer and `pairs.begin` and `pairs.start` may be None. They
are taken from the encoder-decoder that `train.start_from` names. The run's config.json stores all values.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from efficient_attention.config.dict_conversion import default_fields, from_dict, join_comma_lists, to_dict
from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.head import OF_ROWS, POOLED
from efficient_attention.config.run import RunConfig
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.distillation.teacher import check_vocabularies, open_teacher_model
from efficient_attention.errors import InputError
from efficient_attention.interop.config_json_keys import OUR_PAIRS, TEXT_TO_TEXT
from efficient_attention.interop.pretrained import Pretrained, check_encoder, open_pretrained
from efficient_attention.interop.target_token_ids import target_start_piece, trained_token_ids
from efficient_attention.interop.tokenizer_files import check_same_vocabulary
from efficient_attention.tasks.encoded_examples import EncodedExamples, load_examples
from efficient_attention.training.initial_params import check_layer_count, open_start_checkpoint

Values = dict[str, Any]
# A compressed teacher sets these model fields, but its student gets their defaults instead of the teacher's values.
OF_SMALL = ('layer_heads', 'layer_units', 'quantization', 'float_layers', 'ranks')
# The defaults of these model fields depend on the model's width and number of heads.
OF_WIDTH = ('head_width', 'feed_forward_width', 'embedding_width', 'state_width')


class FilledConfig(NamedTuple):
    """A complete config of a run, with the training examples and the checkpoint that were read to complete it."""

    config: RunConfig
    examples: EncodedExamples | None = None  # the encoded examples of a fine-tuning run; None for other runs
    pretrained: Pretrained | None = None  # the opened checkpoint that `train.start_from` names


def fill_config(values: Mapping[str, Any]) -> FilledConfig:
    """Returns the complete config of a run, with the training examples and the checkpoint that were read to complete
    it.

    Raises:
        InputError: a field is bad, or the checkpoint, the tokenizer or the files cannot be used.
    """
    values = join_comma_lists(values, RunConfig)
    if values.get('task') == 'text_to_text':
        return fill_text_to_text_config(values)
    if values.get('task') != 'fine_tuning':
        return FilledConfig(from_dict(values, RunConfig))
    filled = with_placeholder_values(values, {})
    if filled.get('eval', {}).get('split') == 'test':
        raise InputError("eval.split is 'test'; examples.dev chooses the checkpoint, and `eval --split test` tests it")
    # The teacher is checked first: without it, other fields stay None, and their errors would hide the missing teacher.
    from_dict(filled.get('distill', {}), DistillConfig, 'distill.').check_no_fields_without_teacher()
    start = filled['train'].get('start_from')
    pretrained = open_start_checkpoint(start, filled['train'].get('start_layers') or '') if start else None
    if pretrained is not None:
        check_encoder(Path(start), pretrained)
        if filled['train'].get('start_layers') and filled['model'].get('layers') is not None:
            check_layer_count(filled['model']['layers'], pretrained)
    teacher = None if pretrained else open_first_teacher(filled.get('distill', {}))
    like = pretrained or teacher
    if like is not None and (teacher or filled['train'].get('start_random')):
        fill_width_dependent_fields(filled['model'], like)
    if teacher is not None:
        fill_none_fields(filled['model'], {name: default_fields(RunConfig)['model'][name] for name in OF_SMALL})
    fill_none_fields(filled['model'], to_dict(like.model) if like else default_fields(RunConfig)['model'])
    fill_tokenizer(filled['data'], like)
    fill_none_fields(filled['examples'], {'has_global': filled['model']['global_tokens'] > 0})
    steps = {'train': {'steps': 1}, 'optimizer': {'warmup_steps': 0}, 'head': default_fields(RunConfig)['head']}
    # All fields that are known by now are checked before files are read.
    known = from_dict(with_placeholder_values(filled, steps), RunConfig)
    check_vocabularies(known)
    if pretrained is not None and not known.train.start_random:
        ours = load_tokenizer(known.data.tokenizer, lowercase=known.data.lowercase).get_vocab()
        check_same_vocabulary(ours, pretrained.tokenizer, Path(start))
    examples = load_examples(known.examples, known.data)
    labels = examples.problem.labels
    is_known = pretrained and pretrained.problem == known.examples.problem and set(pretrained.labels) == set(labels)
    if pretrained and is_known and not known.examples.labels:
        # If the checkpoint has the same labels in another order, the run uses the checkpoint's order.
        labels = pretrained.labels
        examples = load_examples(dataclasses.replace(known.examples, labels=labels), known.data)
    filled['examples']['labels'] = labels
    fill_head(filled['head'], examples, pretrained)
    fill_step_counts(filled, examples)
    return FilledConfig(from_dict(filled, RunConfig), examples, pretrained)


def fill_text_to_text_config(values: Mapping[str, Any]) -> FilledConfig:
    """Returns the complete config of a text-to-text run, whose None fields are taken from the checkpoint
    `train.start_from`; raises the same errors as `fill_config`.
    """
    filled = with_placeholder_values(values, {})
    groups = [filled[name] for name in ('model', 'data', 'pairs') if name in filled]
    if not any(value is None for group in groups for value in group.values()):
        return FilledConfig(from_dict(values, RunConfig))
    start = filled['train'].get('start_from')
    pretrained = open_pretrained(Path(start)) if start else None
    fill_tokenizer(filled['data'], pretrained)
    if pretrained is None or pretrained.problem != TEXT_TO_TEXT:
        what = f'{start} holds none' if start else 'there is none'
        raise InputError(f'model is left open, to follow the encoder-decoder of train.start_from; {what}')
    fill_none_fields(filled['model'], to_dict(pretrained.model))
    fill_none_fields(filled['data'], {'vocab_size': pretrained.model.vocab_size})
    target = pretrained.target_tokenizer
    fill_none_fields(
        filled['pairs'], {'target_tokenizer': '' if target is None else str(target), 'target_vocab_size': 0}
    )
    fill_none_fields(filled['pairs'], start_tokens_of_checkpoint(pretrained, Path(filled['data']['tokenizer'])))
    return FilledConfig(from_dict(filled, RunConfig), pretrained=pretrained)


def start_tokens_of_checkpoint(pretrained: Pretrained, tokenizer: Path) -> Values:
    """Returns the config fields `pairs.begin` and `pairs.start` with which an encoder-decoder checkpoint was
    trained.
    """
    if pretrained.pairs:
        return {name: pretrained.pairs.get(name, '') for name in OUR_PAIRS}
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    start = loaded.id_to_token(trained_token_ids(pretrained, tokenizer).start)
    return {'begin': target_start_piece(pretrained, loaded), 'start': start or ''}


def fill_config_for_plan(values: Mapping[str, Any]) -> RunConfig:
    """Returns the complete config of a run whose memory and time are only estimated, so that no training data are read.

    Raises:
        InputError: a field is bad, or the sizes depend on training files or on a checkpoint that does not exist.
    """
    if values.get('task') == 'text_to_text':
        return fill_text_to_text_config(values).config
    if values.get('task') == 'fine_tuning':
        raise InputError("task is 'fine_tuning'; its sizes follow from a checkpoint and files, so it is not planned")
    return from_dict(join_comma_lists(values, RunConfig), RunConfig)


def fill_none_fields(group: Values, values: Mapping[str, Any]) -> None:
    """In a config group, replaces each field that is None by its given value."""
    for name, value in values.items():
        if group.get(name) is None:
            group[name] = value


def with_placeholder_values(values: Mapping[str, Any], stand_ins: Mapping[str, Mapping[str, Any]]) -> Values:
    """Returns a copy of the config values, in which each field that is None has its value from `stand_ins`."""
    copy = {name: dict(group) if isinstance(group, Mapping) else group for name, group in values.items()}
    for name, group in stand_ins.items():
        fill_none_fields(copy[name], group)
    return copy


def fill_tokenizer(data: Values, pretrained: Pretrained | None) -> None:
    """Sets `data.tokenizer` to the checkpoint's tokenizer file, if the config names no tokenizer."""
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


def open_first_teacher(distill: Values) -> Pretrained | None:
    """Opens the first teacher that a distillation config names, from which a new student takes its sizes; returns None
    without a teacher.
    """
    folder = (distill.get('teacher') or '').split(',')[0].strip()
    return open_teacher_model(folder) if folder else None


def fill_width_dependent_fields(model: Values, like: Pretrained) -> None:
    """Sets width-dependent model fields to their defaults, if the model's width or number of heads differs from the
    model `like`.
    """
    if any(model.get(name) not in (None, getattr(like.model, name)) for name in ('width', 'heads')):
        fill_none_fields(model, {name: default_fields(RunConfig)['model'][name] for name in OF_WIDTH})


def fill_head(head: Values, examples: EncodedExamples, pretrained: Pretrained | None) -> None:
    """Fills those fields of the head's config that are None, from the problem, the checkpoint's head or the defaults.

    The problem determines kind and outputs. Other fields come from the checkpoint's head, then from the defaults.
    """
    task = examples.problem
    needed: Values = {'kind': task.head}
    if task.head in (*OF_ROWS, 'token'):
        needed['outputs'] = task.head_output_count
    form: Values = {}
    if pretrained is not None:
        form = {name: getattr(pretrained.head, name) for name in ('feed_forward', 'dropout_rate', 'features')}
        form['feed_forward'] = form['feed_forward'] and task.head == 'span'
        if task.head in POOLED:
            form |= {name: getattr(pretrained.head, name) for name in ('transform', 'pooling')}
        if task.config.sentences:
            form['sentence_layers'] = pretrained.head.sentence_layers
    fill_none_fields(head, needed | form)
    fill_none_fields(head, default_fields(RunConfig)['head'])


def fill_step_counts(values: Values, examples: EncodedExamples) -> None:
    """If training steps or warm-up steps are None, sets them from the number of epochs and of training rows."""
    train, optimizer, fields = values['train'], values['optimizer'], values['examples']
    if train.get('steps') is None:
        steps_per_epoch = -(-len(examples.train_rows) // train['batch_size'])
        train['steps'] = max(1, round(fields['epochs'] * steps_per_epoch))
    if optimizer.get('warmup_steps') is None:
        optimizer['warmup_steps'] = round(fields['warmup_share'] * train['steps'])
