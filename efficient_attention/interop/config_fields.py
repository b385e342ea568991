"""Keys of a Hugging Face config.json and our fields: one table a family, with the defaults of that library."""

from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.fields import EXPORTED, marked_fields
from efficient_attention.config.model import ModelConfig

# Field -> (key, what transformers takes where the key is missing; None = it must be there).
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
}
# What a family fixes, beside what follows from other keys.
FIXED: dict[str, dict[str, Any]] = {
    'bert': {},
    'roberta': {},
    'longformer': {},
    'electra': {},
    'albert': {'sharing': 'all'},
    'big_bird': {},
    'distilbert': {'token_types': 0},
}
SHIFTED = ('roberta', 'longformer')  # positions count from the padding token's id + 1
SHIFTED_PAD = 1  # that id by default
# Their name of an activation -> ours; where several mean one, the first is written.
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
}
# Settings that we do not follow: key -> the values that change nothing.
INERT: dict[str, tuple[Any, ...]] = {
    'is_decoder': (False,),
    'add_cross_attention': (False,),
    'is_encoder_decoder': (False,),
    'tie_word_embeddings': (True,),
    'position_embedding_type': ('absolute',),
    'pruned_heads': ({}, None),
    'use_bias': (True,),
    'summary_type': ('first',),
    'problem_type': (None, 'single_label_classification', 'regression'),
    'attention_mode': ('longformer', 'sliding_chunks'),
    'autoregressive': (False,),
    'attention_dilation': (),
}
# What no config of theirs says and no number of the model depends on alone, kept under a key of our own.
OUR_KEY = 'efficient_attention'
OUR_FIELDS = marked_fields(ModelConfig, EXPORTED)
# Fields of a run's `examples` that its predictions depend on, kept there too, as are thresholds chosen on dev files.
OUR_EXAMPLES = marked_fields(ExamplesConfig, EXPORTED)
GLOBAL_TOKENS = 128  # most global tokens of a row for a Longformer whose config does not say


def text_of(attention: list[str]) -> str:
    """One text form for all layers where they agree, else one for each."""
    return attention[0] if len(set(attention)) == 1 else '; '.join(attention)
