"""Tests every named encoder's exact parameter count."""

import functools

import jax
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.encoder_sizes import (
    ALBERT_SIZES,
    BERT_ALIASES,
    BERT_SIZES,
    TINYBERT_SIZES,
    albert_fields,
    bert_fields,
    bigbird_fields,
    distilbert_fields,
    longformer_fields,
    tinybert_fields,
)
from efficient_attention.models.pretraining import PretrainingModel

SIZES = (
    {f'bert_{name}': bert_fields(name) for name in (*BERT_SIZES, *BERT_ALIASES)}
    | {f'albert_{name}': albert_fields(name) for name in ALBERT_SIZES}
    | {'distilbert_base': distilbert_fields('base')}
    | {f'tinybert_{name}': tinybert_fields(name) for name in TINYBERT_SIZES}
    | {'longformer_base': longformer_fields('base'), 'bigbird_base': bigbird_fields('base')}
)
CONFIGS = {name: ModelConfig(**fields) for name, fields in SIZES.items()}

# Encoders with pooler. BERT has V H + 512 H + 2 H + 2 H + N (12 H^2 + 13 H) + (H^2 + H) with V = 30,522.
# BERT sizes: Devlin et al. 2018 (arXiv 1810.04805) and the released miniatures (Turc et al. 2019, arXiv 1908.08962).
# ALBERT has V = 30,000, E = 128 and one shared layer (Lan et al. 2019, arXiv 1909.11942).
WITH_POOLER = {
    'bert_base': 109_482_240,
    'bert_large': 335_141_888,
    'bert_tiny': 4_385_920,
    'bert_mini': 11_170_560,
    'bert_small': 28_763_648,
    'bert_medium': 41_373_184,
    'bert_2x128': 4_385_920,
    'bert_2x256': 9_591_040,
    'bert_2x512': 22_458_880,
    'bert_2x768': 38_603_520,
    'bert_4x128': 4_782_464,
    'bert_4x256': 11_170_560,
    'bert_4x512': 28_763_648,
    'bert_4x768': 52_779_264,
    'bert_6x128': 5_179_008,
    'bert_6x256': 12_750_080,
    'bert_6x512': 35_068_416,
    'bert_6x768': 66_955_008,
    'bert_8x128': 5_575_552,
    'bert_8x256': 14_329_600,
    'bert_8x512': 41_373_184,
    'bert_8x768': 81_130_752,
    'bert_10x128': 5_972_096,
    'bert_10x256': 15_909_120,
    'bert_10x512': 47_677_952,
    'bert_10x768': 95_306_496,
    'bert_12x128': 6_368_640,
    'bert_12x256': 17_488_640,
    'bert_12x512': 53_982_720,
    'bert_12x768': 109_482_240,
    # BERT 6 x 768 without two token types; without a pooler it has 66,362,880 parameters, as the released model.
    'distilbert_base': 66_953_472,
    'tinybert_4': 14_350_248,
    'tinybert_6': 66_955_008,
    'albert_base': 11_683_584,
    'albert_large': 17_683_968,
    'albert_xlarge': 58_724_864,
    'albert_xxlarge': 222_595_584,
    # Longformer is RoBERTa-base (124,645,632) with 4,098 positions and three more projections a layer.
    'longformer_base': 148_659_456,
    'bigbird_base': 127_468_800,
}
WITH_BOTH_HEADS = {
    'bert_base': 110_106_428,
    'bert_large': 336_226_108,
    'albert_base': 11_813_810,
    'albert_large': 17_847_474,
    'albert_xlarge': 59_021_490,
    'albert_xxlarge': 223_158_450,
}
MASKED_LM_WITHOUT_POOLER = {'bert_base': 109_514_298, 'bert_large': 335_174_458, 'bigbird_base': 127_520_694}
MASKED_LM_WITHOUT_POOLER |= {'distilbert_base': 66_985_530}


@functools.cache
def abstract_model(name: str, *, has_pairs: bool = True) -> PretrainingModel:
    """Returns the model of a named size as shapes, without memory for its arrays."""
    return nnx.eval_shape(lambda: PretrainingModel(CONFIGS[name], has_pairs=has_pairs, rngs=nnx.Rngs(0)))


def count(*modules: nnx.Module) -> int:
    return sum(leaf.size for module in modules for leaf in jax.tree.leaves(nnx.state(module)))


def test_no_size_is_missing_from_the_table():
    assert set(WITH_POOLER) == set(CONFIGS)


@pytest.mark.parametrize('name', WITH_POOLER)
def test_encoder_with_pooler(name: str):
    model = abstract_model(name)
    assert count(model.encoder, model.pooler) == WITH_POOLER[name]


@pytest.mark.parametrize('name', WITH_BOTH_HEADS)
def test_encoder_with_both_pretraining_heads(name: str):
    assert count(abstract_model(name)) == WITH_BOTH_HEADS[name]


@pytest.mark.parametrize('name', MASKED_LM_WITHOUT_POOLER)
def test_encoder_with_the_masked_lm_head_alone(name: str):
    assert count(abstract_model(name, has_pairs=False)) == MASKED_LM_WITHOUT_POOLER[name]


@pytest.mark.parametrize('name', WITH_POOLER)
def test_heads_are_64_wide_but_in_the_smallest_tinybert(name: str):
    assert CONFIGS[name].head_width == (26 if name == 'tinybert_4' else 64)


def test_only_the_largest_albert_trains_without_dropout():
    rates = {name: config.dropout_rate for name, config in CONFIGS.items() if name.startswith('albert')}
    assert [name for name, rate in rates.items() if rate == 0] == ['albert_xxlarge']


def test_an_unknown_size_lists_the_known_ones():
    with pytest.raises(InputError, match="unknown BERT size 'huge'; known: base, large, 2x128"):
        bert_fields('huge')
    with pytest.raises(InputError, match="unknown ALBERT size 'tiny'; known: base, large, xlarge, xxlarge"):
        albert_fields('tiny')
