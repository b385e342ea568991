"""Writes the line at a run's start that says which backend computes the attention of which layers."""

from collections.abc import Mapping, Sequence

from efficient_attention.attention.choice_log import Caller, Choice, Refusal
from efficient_attention.config.run import RunConfig

# Feature that a faster backend lacks -> the change of the config that makes the backend usable. The changes leave the
# function that the model computes as it is, so there is none for a bias or for additive scores.
REMEDIES = {
    'attention dropout': 'model.attention_dropout_rate=0',
    'inputs of type float16': 'model.dtype=bfloat16',
    'inputs of type float32': 'model.dtype=bfloat16',
}
# Backends with kernels of fused attention. If one of them computes a layer, the line names only changes of the config.
KERNELS = ('cudnn', 'mosaic', 'splash')


def remedies_of_run(config: RunConfig) -> dict[str, str]:
    """Returns `REMEDIES` and, if a change of the run's data gives each row one text, this change."""
    data = config.data
    changes = {
        'pretraining': {'data.pairs=nsp': data.pairs == 'none'},
        'text_to_text': {'pairs.packed=False': config.pairs.packed},
        'language_modelling': {
            'data.cut_at_documents=False': data.cut_at_documents,
            'data.batches=windows': data.batches == 'streams',
        },
    }.get(config.task, {})
    # Segment memory needs streams, whose segments are numbered from step to step.
    needed = [] if config.model.memory_length else [change for change, is_needed in changes.items() if is_needed]
    return REMEDIES | ({'support for packed segments': ', '.join(needed)} if needed else {})


def attention_line(choices: Sequence[Choice], remedies: Mapping[str, str] = REMEDIES) -> str:
    """Returns one line with the backends of all layers, and the config changes for a faster one; '' without choices.

    An example is 'attention: layers 1-12: blocked over full (cudnn would work with model.attention_dropout_rate=0)'.
    Here `blocked` is the backend, and `full` is the pattern.
    """
    groups: dict[tuple[str, str, str], tuple[set[int], dict[str, None]]] = {}
    for choice in choices:
        advice = '; '.join(
            advice_of(name, refusal, remedies)
            for name, refusal in choice.refusals.items()
            if choice.backend not in KERNELS or has_remedies(refusal, remedies)
        )
        layers, patterns = groups.setdefault((choice.caller.kind, choice.backend, advice), (set(), {}))
        layers.update(choice.caller.layers)
        patterns[choice.pattern] = None
    has_decoder = any(kind == 'decoder' for kind, _, _ in groups)
    parts = [
        f'{caller_name(Caller(tuple(sorted(layers)), kind), has_decoder=has_decoder)}: '
        f'{backend} over {", ".join(patterns)}{f" ({advice})" if advice else ""}'
        for (kind, backend, advice), (layers, patterns) in groups.items()
    ]
    return f'attention: {"; ".join(parts)}' if parts else ''


def advice_of(backend: str, refusal: Refusal, remedies: Mapping[str, str]) -> str:
    """Returns the changes of the config with which a backend would work, or the reason why none is known."""
    if has_remedies(refusal, remedies):
        return f'{backend} would work with {", ".join(remedies[feature] for feature in refusal.features)}'
    return refusal.message


def has_remedies(refusal: Refusal, remedies: Mapping[str, str]) -> bool:
    """Returns whether changes of the config would remove all reasons of a refusal."""
    return bool(refusal.features) and all(feature in remedies for feature in refusal.features)


def caller_name(caller: Caller, *, has_decoder: bool) -> str:
    """Returns the name of a part of a model, such as 'layers 1-12' or 'cross-attention of layers 1-6'.

    `has_decoder` says whether the model has an encoder and a decoder.
    """
    if not caller.layers:
        return caller.kind or 'outside layers'
    layers = f'layer{"s" if len(caller.layers) > 1 else ""} {number_ranges(caller.layers)}'
    if caller.kind == 'cross-attention':
        return f'cross-attention of {layers}'
    kind = caller.kind or ('encoder' if has_decoder else '')
    return f'{kind} {layers}' if kind else layers


def number_ranges(layers: Sequence[int]) -> str:
    """Returns sorted layer numbers as text that counts from 1, such as '1-4', '1, 3, ..., 11' or '1-2, 5'."""
    steps = {after - before for before, after in zip(layers, layers[1:], strict=False)}
    if len(layers) > 3 and len(steps) == 1 and steps != {1}:
        return f'{layers[0] + 1}, {layers[1] + 1}, ..., {layers[-1] + 1}'
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] + 1 == layer:
            runs[-1][1:] = [layer]
        else:
            runs.append([layer])
    return ', '.join('-'.join(str(layer + 1) for layer in run) for run in runs)
