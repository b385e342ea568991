"""Maps the config.json keys of each Hugging Face family to this project's config fields, with default values."""

from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.field_metadata import EXPORTED, marked_fields
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.pairs import PairsConfig

# Maps a config field to (its config.json key, the default of transformers for a missing key); None = a required key.
Fields = dict[str, tuple[str, Any]]

BERT: Fields = {
    'vocab_size': ('vocab_size', None),
    'width': ('hidden_size', None),
    'layers': ('num_hidden_layers', None),
    'heads': ('num_attention_heads', None),
    'feed_forward_width': ('intermediate_size', None),
    'max_length': ('max_position_embeddings', None),
    'token_types': ('type_vocab_size', 2),
    'norm_epsilon': ('layer_norm_eps', 1e-12),
    'dropout_rate': ('hidden_dropout_prob', 0.1),
    'attention_dropout_rate': ('attention_probs_dropout_prob', 0.1),
    'init_std': ('initializer_range', 0.02),
    'activation': ('hidden_act', 'gelu'),
}
FACTORISED: Fields = BERT | {'embedding_width': ('embedding_size', 128)}
BART: Fields = {
    'vocab_size': ('vocab_size', None),
    'width': ('d_model', None),
    'layers': ('encoder_layers', None),
    'decoder_layers': ('decoder_layers', None),
    'heads': ('encoder_attention_heads', None),
    'feed_forward_width': ('encoder_ffn_dim', None),
    'max_length': ('max_position_embeddings', 1024),
    'embedding_scale': ('scale_embedding', False),
    'dropout_rate': ('dropout', 0.1),
    'attention_dropout_rate': ('attention_dropout', 0.0),
    'feed_forward_dropout_rate': ('activation_dropout', 0.0),
    'init_std': ('init_std', 0.02),
    'activation': ('activation_function', 'gelu'),
}
T5: Fields = {
    'vocab_size': ('vocab_size', 32_128),
    'width': ('d_model', None),
    'layers': ('num_layers', None),
    'decoder_layers': ('num_decoder_layers', None),
    'heads': ('num_heads', None),
    'head_width': ('d_kv', 64),
    'feed_forward_width': ('d_ff', None),
    'max_length': ('n_positions', 512),
    'relative_buckets': ('relative_attention_num_buckets', 32),
    'relative_max_distance': ('relative_attention_max_distance', 128),
    'norm_epsilon': ('layer_norm_epsilon', 1e-6),
    'dropout_rate': ('dropout_rate', 0.1),
    'init_std': ('initializer_factor', 1.0),
    'activation': ('feed_forward_proj', 'relu'),
}
GPT2: Fields = {
    'vocab_size': ('vocab_size', None),
    'width': ('n_embd', None),
    'layers': ('n_layer', None),
    'heads': ('n_head', None),
    'feed_forward_width': ('n_inner', None),
    'max_length': ('n_positions', 1024),
    'scaled_logits': ('scale_attn_weights', True),
    'norm_epsilon': ('layer_norm_epsilon', 1e-5),
    'dropout_rate': ('resid_pdrop', 0.1),
    'attention_dropout_rate': ('attn_pdrop', 0.1),
    'init_std': ('initializer_range', 0.02),
    'activation': ('activation_function', 'gelu_new'),
}
FIELDS: dict[str, Fields] = {
    'bert': BERT,
    'roberta': BERT,
    'longformer': BERT,
    'electra': FACTORISED,
    'albert': FACTORISED
    | {
        'activation': ('hidden_act', 'gelu_new'),
        'dropout_rate': ('hidden_dropout_prob', 0.0),
        'attention_dropout_rate': ('attention_probs_dropout_prob', 0.0),
        'layer_groups': ('num_hidden_groups', 1),
        'inner_layers': ('inner_group_num', 1),
    },
    'big_bird': BERT | {'activation': ('hidden_act', 'gelu_new'), 'embedding_scale': ('rescale_embeddings', False)},
    'distilbert': {
        'vocab_size': ('vocab_size', None),
        'width': ('dim', None),
        'layers': ('n_layers', None),
        'heads': ('n_heads', None),
        'feed_forward_width': ('hidden_dim', None),
        'max_length': ('max_position_embeddings', 512),
        'dropout_rate': ('dropout', 0.1),
        'attention_dropout_rate': ('attention_dropout', 0.1),
        'init_std': ('initializer_range', 0.02),
        'activation': ('activation', 'gelu'),
    },
    't5': T5,
    'mt5': T5 | {'vocab_size': ('vocab_size', 250_112), 'activation': ('feed_forward_proj', 'gated-gelu')},
    'bart': BART,
    'marian': BART,
    'pegasus': BART,
    'gpt2': GPT2,
}
SINUSOIDAL = {'token_types': 0, 'positions': 'sinusoidal', 'embedding_norm': False, 'norm_epsilon': 1e-5}
T5_FIXED = {
    'token_types': 0,
    'positions': 'none',
    'relative': 't5',
    'embedding_norm': False,
    'norm': 'pre',
    'norm_kind': 'rms',
    'final_dropout': True,
    'attention_bias': False,
    'feed_forward_bias': False,
    'scaled_logits': False,
    'kernel_init': 'fan_in',
}
# Config fields that have one fixed value in a family, because no config.json key sets them.
FIXED: dict[str, dict[str, Any]] = {
    'bert': {},
    'roberta': {},
    'longformer': {},
    'electra': {},
    'albert': {'sharing': 'all'},
    'big_bird': {},
    'distilbert': {'token_types': 0},
    't5': T5_FIXED,
    'mt5': T5_FIXED,
    'bart': {'token_types': 0, 'position_offset': 2, 'norm_epsilon': 1e-5},
    'marian': SINUSOIDAL,
    'pegasus': SINUSOIDAL | {'norm': 'pre'},
    'gpt2': {'token_types': 0, 'embedding_norm': False, 'norm': 'pre', 'attention': 'causal'},
}
# In RoBERTa and Longformer, the number of the first position is the padding token's id + 1.
SHIFTED = ('roberta', 'longformer')
SHIFTED_PAD = 1  # the padding token's id in RoBERTa and Longformer, if config.json states none
# Maps the name of an activation in transformers to its name in this project.
# If several names in transformers mean one activation, exports use the first of them.
ACTIVATIONS = {
    'gelu': 'gelu_erf',
    'gelu_python': 'gelu_erf',
    'gelu_new': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'gelu_python_tanh': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
    'gelu_accurate': 'gelu_tanh',
    'quick_gelu': 'gelu_sigmoid',
    'relu': 'relu',
    'silu': 'silu',
    'swish': 'silu',
}
# T5's name of a feed-forward activation -> (this project's name, has a gate). 'gated-gelu' is the tanh form of GELU.
PROJECTIONS = (
    {name: (ours, False) for name, ours in ACTIVATIONS.items()}
    | {f'gated-{name}': (ours, True) for name, ours in ACTIVATIONS.items()}
    | {'gated-gelu': ('gelu_tanh', True)}
)
# Pairs of keys whose values must be equal, because encoders and decoders of this project have one size.
TWINS = {
    'decoder_attention_heads': 'encoder_attention_heads',
    'decoder_ffn_dim': 'encoder_ffn_dim',
    'decoder_vocab_size': 'vocab_size',
}
# Settings that this project does not support: config.json key -> the values with which the setting has no effect.
INERT: dict[str, tuple[Any, ...]] = {
    'is_decoder': (False,),
    'add_cross_attention': (False,),
    'is_encoder_decoder': (False,),
    'tie_word_embeddings': (True,),
    'position_embedding_type': ('absolute',),
    'pruned_heads': ({}, None),
    'use_bias': (True,),
    'summary_type': ('first',),
    'problem_type': (None, 'single_label_classification', 'regression', 'multi_label_classification'),
    'attention_mode': ('longformer', 'sliding_chunks'),
    'autoregressive': (False,),
    'attention_dilation': (),
}
LANGUAGE_MODELLING = 'language_modelling'  # the value of `problem` for every model that is only a decoder
# Unsupported settings of language models: config.json key -> the values with which the setting has no effect.
# `reorder_and_upcast_attn` is missing here, because it only changes the precision of rounding.
LANGUAGE_MODEL_INERT: dict[str, tuple[Any, ...]] = {
    'add_cross_attention': (False,),
    'is_encoder_decoder': (False,),
    'tie_word_embeddings': (True,),
    'scale_attn_by_inverse_layer_idx': (False,),
    'pruned_heads': ({}, None),
}
TEXT_TO_TEXT = 'text_to_text'  # the value of `problem` for every encoder-decoder
MULTI_LABEL, NUMBERS = 'multi_label_classification', 'regression'  # two values of the config.json key `problem_type`
# this project's name of the problem for regression with several outputs per row
SEVERAL_NUMBERS = 'multi_output_regression'
# problems with several answers per row, which this project supports only for inference
SEVERAL = (MULTI_LABEL, SEVERAL_NUMBERS)
# Unsupported settings of encoder-decoders: config.json key -> the values with which the setting has no effect.
# A T5 may have any value of `tie_word_embeddings`, because other keys decide which of its outputs are tied.
TEXT_TO_TEXT_INERT: dict[str, tuple[Any, ...]] = {
    'is_decoder': (False,),
    'is_encoder_decoder': (True,),
    'tie_word_embeddings': (True,),
    'share_encoder_decoder_embeddings': (True,),
    'encoder_layerdrop': (0.0, None),
    'decoder_layerdrop': (0.0, None),
    'pruned_heads': ({}, None),
}
# This project's own key in config.json holds model fields for which Hugging Face has no key.
# OUR_KEY keeps only fields on which no tensor depends.
OUR_KEY = 'efficient_attention'
OUR_FIELDS = marked_fields(ModelConfig, EXPORTED)
T5_UNSAID = ('attention_dropout_rate', 'feed_forward_dropout_rate', 'final_dropout', 'kernel_init')
# If a family's config.json has no keys for these fields, OUR_KEY keeps them. Only training reads the fields.
OUR_FIELDS_OF = {
    't5': T5_UNSAID,
    'mt5': T5_UNSAID,
    'bart': ('kernel_init',),
    'marian': ('kernel_init',),
    'pegasus': ('kernel_init',),
    'gpt2': ('feed_forward_dropout_rate', 'final_dropout', 'kernel_init'),
}
# Fields of OUR_FIELDS that a family has by itself. transformers would compute other numbers if OUR_KEY stated them.
NOT_OURS_OF = {'gpt2': ('attention',)}
# Predictions depend on these fields of a run's `examples` config, so exports keep them under OUR_KEY.
OUR_EXAMPLES = marked_fields(ExamplesConfig, EXPORTED)
# Predictions of encoder-decoders depend on these fields of a run's `pairs` config.
OUR_PAIRS = marked_fields(PairsConfig, EXPORTED)
# maximum number of global tokens per row of an imported Longformer, if its config.json states no number
GLOBAL_TOKENS = 128


def join_layer_mechanisms(attention: list[str]) -> str:
    """Joins the attention mechanisms of all layers into one text; a single mechanism if all layers have the same."""
    return attention[0] if len(set(attention)) == 1 else '; '.join(attention)


def custom_key_fields(kind: str) -> tuple[str, ...]:
    """Returns the names of the model fields that exports of a family keep under this project's own key in
    config.json.
    """
    own = NOT_OURS_OF.get(kind, ())
    return (*(name for name in OUR_FIELDS if name not in own), *OUR_FIELDS_OF.get(kind, ()))
