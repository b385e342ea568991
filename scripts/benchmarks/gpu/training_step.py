"""Measures training steps of published models at the sizes of their configs: tokens/s, and share of the peak FLOP/s.

`make_train_step` makes the same step as in `train.py`, for one device. The fields of the models are plain dictionaries,
because the config files need ml_collections, which a borrowed machine may lack. Parameters and tokens are random. As in
the metric `flops_utilisation` of a run, the operations are those of the model without recomputation.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.decoder_sizes import gpt2_fields
from efficient_attention.models.encoder_sizes import bert_fields, bigbird_fields, longformer_fields
from efficient_attention.models.flops import encoder_flops
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.objectives.bert_pretraining import Pretraining
from efficient_attention.objectives.language_modelling import LanguageModelling
from efficient_attention.training.optimizer import STACKED_LAYERS, make_optimizer
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.training.step import StepFn, make_train_step
from scripts.benchmarks.gpu.cases import (
    Case,
    Settings,
    compile_program,
    peak_bytes,
    peak_since,
    speed,
    time_calls,
    tokens_per_second,
)
from scripts.benchmarks.plain_nnx import PlainEncoder

Batch = dict[str, np.ndarray]
PLAIN = 'plain Flax NNX'


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model whose training step is measured; a model without masked positions (`masked` 0) is a decoder.

    `rows` is the number of rows of a measured batch; the config may have more. `variants` maps the name of a variant to
    the fields that differ from the config.
    """

    name: str
    config: str  # the config file with these sizes
    fields: dict[str, Any]
    rows: int
    length: int
    masked: int = 0
    has_pairs: bool = False
    variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=lambda: {'as configured': {}})

    @property
    def shape(self) -> str:
        """The model's name with rows and length of a batch."""
        return f'{self.name}, {self.rows} rows of {self.length}'


BLOCKED = {'attention_backend': 'blocked'}
NO_DROPOUT = {'attention_dropout_rate': 0.0}  # cuDNN attention needs this value
SIDES_OF_BERT = {'no attention dropout': NO_DROPOUT, 'as configured': {}}
BF16 = {'dtype': 'bfloat16'}
AUTO = {'remat': 'auto'}  # measured as 'dots', which a run on a GPU tries first
MODELS = (
    # The first two have the sizes for which scripts/plan.py estimates steps (docs/results/scaling.md).
    TrainedModel(
        'GPT-2 124M',
        'configs/lm/gpt.py:small',
        gpt2_fields('small') | BF16 | {'remat': 'full', 'loss_chunk': 256},
        rows=16,
        length=1024,
        variants={'no attention dropout, dots': NO_DROPOUT | {'remat': 'dots'}, 'as configured': {}},
    ),
    TrainedModel(
        'BERT-base',
        'configs/pretrain/bert.py:base',
        bert_fields('base') | BF16 | AUTO,
        rows=64,
        length=512,
        masked=77,
        has_pairs=True,
        variants={'no attention dropout, dots': NO_DROPOUT | {'remat': 'dots'}, 'as configured': {}},
    ),
    TrainedModel(
        'GPT-2 124M',
        'configs/lm/gpt.py:small',
        gpt2_fields('small') | BF16 | {'remat': 'full', 'loss_chunk': 256},
        rows=32,
        length=1024,
        variants={
            'no attention dropout, no rematerialisation': NO_DROPOUT | {'remat': 'none'},
            'no attention dropout': NO_DROPOUT,
            'as configured': {},
        },
    ),
    TrainedModel(
        'BERT-base',
        'configs/pretrain/bert.py:base',
        bert_fields('base') | BF16 | AUTO,
        rows=256,
        length=128,
        masked=20,
        has_pairs=True,
        variants=SIDES_OF_BERT,
    ),
    TrainedModel(
        'Longformer-base',
        'configs/pretrain/longformer.py',
        longformer_fields('base') | BF16 | {'global_tokens': 0, 'remat': 'full'},
        rows=8,
        length=4096,
        masked=614,
        variants={'as configured': {}, 'no attention dropout': NO_DROPOUT, 'backend blocked': BLOCKED},
    ),
    TrainedModel(
        'BigBird-base',
        'configs/pretrain/bigbird.py',
        bigbird_fields('base') | BF16 | {'remat': 'full'},
        rows=8,
        length=4096,
        masked=614,
        variants={'as configured': {}, 'backend blocked': BLOCKED},
    ),
    TrainedModel(
        'BERT-large',
        'configs/pretrain/bert.py:large',
        bert_fields('large') | BF16 | AUTO,
        rows=64,
        length=512,
        masked=77,
        has_pairs=True,
        variants=SIDES_OF_BERT,
    ),
)
TINY = {'layers': 1, 'width': 16, 'heads': 2, 'vocab_size': 64, 'max_length': 64}
TINY |= {'remat': 'none', 'dropout_rate': 0.0, 'attention_dropout_rate': 0.0}
DRY_MODELS = tuple(
    dataclasses.replace(model, fields=model.fields | TINY, rows=2, length=32, masked=masked, variants={'tiny': {}})
    for model, masked in ((MODELS[0], 0), (MODELS[1], 4))
)


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case for each variant of each model, and for BERT-base also the step of a plain Flax encoder."""
    models = DRY_MODELS if settings.is_dry else MODELS
    cases = []
    for model in models:
        for number, (variant, changes) in enumerate(model.variants.items()):
            measure = functools.partial(measure_model, model, changes, settings)
            cases.append(Case(model.shape, variant, measure, is_first=number == 0))
        if model.name == 'BERT-base':
            cases.append(Case(model.shape, PLAIN, functools.partial(measure_plain, model, settings), is_peer=True))
    return cases


def measure_model(model: TrainedModel, changes: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Measures this project's training step of a model, with the changed config fields of a variant."""
    fields = model.fields | changes
    config = ModelConfig(**fields | ({'remat': 'dots'} if fields.get('remat') == 'auto' else {}))
    step, first_state = make_step(model, config)
    figures = time_step(step, jax.jit(first_state)(), random_batch(model, config), settings)
    return figures | speed(figures['milliseconds'], training_flops(model, config)) | {'config': model.config}


def time_step(step: Callable[..., Any], state: Any, batch: Batch, settings: Settings) -> dict[str, Any]:
    """Returns time, memory and tokens/s of a step (state, batch) -> (state, metrics).

    The step donates its state: the new state overwrites the memory of the old state.
    """
    on_device = jax.device_put(batch)
    program, figures = compile_program(step, (state, on_device), donated=(0,))
    before = peak_bytes()

    def call() -> Any:
        nonlocal state
        state, metrics = program(state, on_device)
        return metrics

    figures |= time_calls(call, jax.block_until_ready, settings) | peak_since(before)
    return figures | tokens_per_second(figures, batch['tokens'].size)


def make_step(model: TrainedModel, config: ModelConfig) -> tuple[StepFn, Callable[[], TrainState]]:
    """Returns the training step with AdamW, and a function that creates the initial state."""
    is_decoder = not model.masked

    def make_model() -> nnx.Module:
        rngs = nnx.Rngs(0)
        return (
            Decoder(config, rngs=rngs) if is_decoder else PretrainingModel(config, has_pairs=model.has_pairs, rngs=rngs)
        )

    optimizer = make_optimizer(OptimizerConfig(), total_steps=1000, stacked=STACKED_LAYERS)
    graph, _ = nnx.split(nnx.eval_shape(make_model))

    def first_state() -> TrainState:
        return initial_state(nnx.to_pure_dict(nnx.state(make_model())), optimizer, seed=0)

    objective = LanguageModelling(config) if is_decoder else Pretraining(model.has_pairs)
    return make_train_step(graph, objective, optimizer), first_state


def training_flops(model: TrainedModel, config: ModelConfig) -> float:
    """Returns the operations of a step; a backward pass counts as two forward passes.

    The model's task counts the operations of a run in the same way.
    """
    row = encoder_flops(config, model.length, predictions=model.masked)
    row += 0.0 if model.masked else 2.0 * model.length * config.width * config.vocab_size
    return 3.0 * model.rows * row


def random_batch(model: TrainedModel, config: ModelConfig) -> Batch:
    """Returns a training batch of random token ids, without padding, with all arrays that the model's task needs."""
    rng = np.random.default_rng(0)
    rows, length = size = (model.rows, model.length)
    tokens = rng.integers(5, config.vocab_size, size, np.int32)
    ones, lengths = np.ones(size, np.int32), np.full(rows, length, np.int32)
    batch = {'tokens': tokens, 'segments': ones}
    if not model.masked:
        return batch | {'targets': np.roll(tokens, -1, 1), 'weights': ones.astype(np.float32), 'lengths': lengths}
    masked = (rows, model.masked)
    places = np.sort(rng.permuted(np.tile(np.arange(length, dtype=np.int32), (rows, 1)), axis=1)[:, : model.masked])
    batch |= {
        'token_types': np.zeros_like(tokens),
        'positions': np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        'masked_positions': places,
        'masked_tokens': np.take_along_axis(tokens, places, axis=1),
        'masked_weights': np.ones(masked, np.float32),
    }
    if model.has_pairs:
        labels = np.arange(rows, dtype=np.int32) % 2
        batch |= {'pair_labels': labels, 'pair_weights': np.ones(rows, np.float32), 'lengths': lengths}
    return batch


def measure_plain(model: TrainedModel, settings: Settings) -> dict[str, Any]:
    """Measures a masked-LM step of a plain Flax NNX encoder of the same sizes, with Optax's AdamW and no dropout.

    This encoder has no pooler, no pair head and no dense layer before the logits, so it does slightly less work.
    """
    config = ModelConfig(**model.fields)
    sizes = {'width': config.width, 'feed_forward_width': config.feed_forward_width, 'heads': config.heads}
    sizes |= {'layers': config.layers, 'vocab_size': config.vocab_size, 'dtype': config.dtype}
    batch = random_batch(model, config)
    optimizer = optax.adamw(1e-4)
    graph, _ = nnx.split(nnx.eval_shape(lambda: PlainEncoder(sizes, nnx.Rngs(0))))

    def loss(params: Any, batch: Any) -> jax.Array:
        encoder = nnx.merge(graph, params)
        hidden_BLD = encoder(batch['tokens'], batch['segments'] > 0)
        hidden_BPD = jnp.take_along_axis(hidden_BLD, batch['masked_positions'][..., None], axis=1)
        logits_BPV = encoder.token.attend(hidden_BPD).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits_BPV, batch['masked_tokens']).mean()

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    @jax.jit
    def first_state() -> Any:
        params = nnx.split(PlainEncoder(sizes, nnx.Rngs(0)))[1]
        return params, optimizer.init(params)

    figures = time_step(step, first_state(), batch, settings)
    return figures | speed(figures['milliseconds'], training_flops(model, config))
