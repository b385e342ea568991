"""Maps this project's module paths to tensor names in Hugging Face checkpoints, with one table per model family.

A table maps this project's module paths to Hugging Face names, with '{group}' and '{layer}' in place of numbers. A name
that begins with a dot belongs to the base model. In a model with a head, such a name follows the base model's prefix
('bert.').
"""

import dataclasses
from collections.abc import Mapping

Names = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class PooledHeadNames:
    """Tensor names of a classification head that pools the first token's vector: names of 'pooler/dense' and
    'head/out', and the activation between them.
    """

    names: Names
    activation: str  # a value of `HeadConfig.transform`; '' = the activation of the model's layers


NO_HEAD = PooledHeadNames({}, '')


@dataclasses.dataclass(frozen=True)
class HuggingFaceFamily:
    """Tensor and class names of one Hugging Face `model_type`. An encoder-decoder has a `decoder` table, and no tables
    for heads of encoders. A language model has only a `decoder` table.
    """

    model_type: str
    stem: str  # beginning of the class names in transformers, such as 'Bert' of 'BertForMaskedLM'
    prefix: str  # In a model with a head, the names of the encoder's tensors begin with this prefix.
    encoder: Names
    masked_lm: Names = dataclasses.field(default_factory=dict)
    sequence: PooledHeadNames = NO_HEAD
    choice: PooledHeadNames = NO_HEAD
    span: Names = dataclasses.field(default_factory=dict)
    token: Names = dataclasses.field(default_factory=lambda: {'head/out': 'classifier'})
    pooler: str = ''  # tensor name of the pooler; '' = the family has no pooler
    pair: str = ''  # tensor name of the sentence-pair classifier of pretraining; '' = the family has none
    # tensor names of the head that detects replaced tokens (ELECTRA)
    detector: Names = dataclasses.field(default_factory=dict)
    is_masked_lm_erf: bool = False  # True if the masked-LM head uses the exact GELU whatever activation the layers use
    # tensor names of the decoder, and of the embedding table that encoder and decoder share
    decoder: Names = dataclasses.field(default_factory=dict)
    # tensor names of feed-forward layers in models with `feed_forward_gate`, in place of the names without gates
    gated: Names = dataclasses.field(default_factory=dict)
    # endings of the class names of models that generate text; exports use the first ending
    generators: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()  # names under which a checkpoint file may repeat the shared embedding table
    # patterns of tensor names that no parameter uses, but that a checkpoint file may contain
    harmless: tuple[str, ...] = ()
    # model fields that the importer reads from the tensors, because config.json does not state them
    output_fields: tuple[str, ...] = ()
    is_input_first: bool = False  # True if kernels have the shape [inputs, outputs], as in this project
    # Tensor names that several modules have. Such a tensor holds their outputs side by side, in the table's order.
    # Only a family with `is_input_first` may have such tensors.
    fused: tuple[str, ...] = ()

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether models of the family have an encoder and a decoder."""
        return bool(self.encoder and self.decoder)

    @property
    def is_language_model(self) -> bool:
        """Whether models of the family have only a decoder."""
        return bool(self.decoder) and not self.encoder


EMBEDDINGS = {
    'encoder/embeddings/token': '.embeddings.word_embeddings',
    'encoder/embeddings/position': '.embeddings.position_embeddings',
    'encoder/embeddings/token_type': '.embeddings.token_type_embeddings',
    'encoder/embeddings/norm': '.embeddings.LayerNorm',
}
_LAYER, _OURS = '.encoder.layer.{layer}', 'encoder/stack/layers'
# In transformers, only Longformer has projections for global tokens.
# If a model of another family has projections for global tokens, their tensors are named as in Longformer.
BERT_LAYERS = {
    f'{_OURS}/attention/query': f'{_LAYER}.attention.self.query',
    f'{_OURS}/attention/key': f'{_LAYER}.attention.self.key',
    f'{_OURS}/attention/value': f'{_LAYER}.attention.self.value',
    f'{_OURS}/attention/global_projections/query': f'{_LAYER}.attention.self.query_global',
    f'{_OURS}/attention/global_projections/key': f'{_LAYER}.attention.self.key_global',
    f'{_OURS}/attention/global_projections/value': f'{_LAYER}.attention.self.value_global',
    f'{_OURS}/attention/out': f'{_LAYER}.attention.output.dense',
    f'{_OURS}/attention_norm': f'{_LAYER}.attention.output.LayerNorm',
    f'{_OURS}/feed_forward/up': f'{_LAYER}.intermediate.dense',
    f'{_OURS}/feed_forward/down': f'{_LAYER}.output.dense',
    f'{_OURS}/feed_forward_norm': f'{_LAYER}.output.LayerNorm',
}
_GROUP = '.encoder.albert_layer_groups.{group}.albert_layers.{layer}'
ALBERT_LAYERS = {
    f'{_OURS}/attention/query': f'{_GROUP}.attention.query',
    f'{_OURS}/attention/key': f'{_GROUP}.attention.key',
    f'{_OURS}/attention/value': f'{_GROUP}.attention.value',
    f'{_OURS}/attention/global_projections/query': f'{_GROUP}.attention.query_global',
    f'{_OURS}/attention/global_projections/key': f'{_GROUP}.attention.key_global',
    f'{_OURS}/attention/global_projections/value': f'{_GROUP}.attention.value_global',
    f'{_OURS}/attention/out': f'{_GROUP}.attention.dense',
    f'{_OURS}/attention_norm': f'{_GROUP}.attention.LayerNorm',
    f'{_OURS}/feed_forward/up': f'{_GROUP}.ffn',
    f'{_OURS}/feed_forward/down': f'{_GROUP}.ffn_output',
    f'{_OURS}/feed_forward_norm': f'{_GROUP}.full_layer_layer_norm',
}
_BLOCK = '.transformer.layer.{layer}'
DISTILBERT_LAYERS = {
    f'{_OURS}/attention/query': f'{_BLOCK}.attention.q_lin',
    f'{_OURS}/attention/key': f'{_BLOCK}.attention.k_lin',
    f'{_OURS}/attention/value': f'{_BLOCK}.attention.v_lin',
    f'{_OURS}/attention/global_projections/query': f'{_BLOCK}.attention.q_lin_global',
    f'{_OURS}/attention/global_projections/key': f'{_BLOCK}.attention.k_lin_global',
    f'{_OURS}/attention/global_projections/value': f'{_BLOCK}.attention.v_lin_global',
    f'{_OURS}/attention/out': f'{_BLOCK}.attention.out_lin',
    f'{_OURS}/attention_norm': f'{_BLOCK}.sa_layer_norm',
    f'{_OURS}/feed_forward/up': f'{_BLOCK}.ffn.lin1',
    f'{_OURS}/feed_forward/down': f'{_BLOCK}.ffn.lin2',
    f'{_OURS}/feed_forward_norm': f'{_BLOCK}.output_layer_norm',
}
BERT_MASKED_LM = {
    'masked_lm': 'cls.predictions',
    'masked_lm/transform': 'cls.predictions.transform.dense',
    'masked_lm/norm': 'cls.predictions.transform.LayerNorm',
}
ROBERTA_MASKED_LM = {
    'masked_lm': 'lm_head',
    'masked_lm/transform': 'lm_head.dense',
    'masked_lm/norm': 'lm_head.layer_norm',
}
TWO_LAYERS = {'pooler/dense': 'classifier.dense', 'head/out': 'classifier.out_proj'}


def _tanh_pooled_head_names(name: str) -> PooledHeadNames:
    return PooledHeadNames({'pooler/dense': name, 'head/out': 'classifier'}, 'tanh')


SPAN = {'head/out': 'qa_outputs'}
BERT_POOLER = '.pooler.dense'
_BEFORE_CLASSIFIER = PooledHeadNames({'pooler/dense': 'pre_classifier', 'head/out': 'classifier'}, 'relu')

# ---- encoder-decoders ----

_T5 = 'encoder.block.{layer}.layer'
T5_ENCODER = {
    'encoder/stack/position_bias': 'encoder.block.0.layer.0.SelfAttention.relative_attention_bias',
    f'{_OURS}/attention/query': f'{_T5}.0.SelfAttention.q',
    f'{_OURS}/attention/key': f'{_T5}.0.SelfAttention.k',
    f'{_OURS}/attention/value': f'{_T5}.0.SelfAttention.v',
    f'{_OURS}/attention/out': f'{_T5}.0.SelfAttention.o',
    f'{_OURS}/attention_norm': f'{_T5}.0.layer_norm',
    f'{_OURS}/feed_forward/up': f'{_T5}.1.DenseReluDense.wi',
    f'{_OURS}/feed_forward/down': f'{_T5}.1.DenseReluDense.wo',
    f'{_OURS}/feed_forward_norm': f'{_T5}.1.layer_norm',
    'encoder/norm': 'encoder.final_layer_norm',
}
_T5, _DECODER = 'decoder.block.{layer}.layer', 'decoder/stack/layers'
T5_DECODER = {
    'decoder/embeddings/token': 'shared',
    'decoder/stack/position_bias': 'decoder.block.0.layer.0.SelfAttention.relative_attention_bias',
    f'{_DECODER}/attention/query': f'{_T5}.0.SelfAttention.q',
    f'{_DECODER}/attention/key': f'{_T5}.0.SelfAttention.k',
    f'{_DECODER}/attention/value': f'{_T5}.0.SelfAttention.v',
    f'{_DECODER}/attention/out': f'{_T5}.0.SelfAttention.o',
    f'{_DECODER}/attention_norm': f'{_T5}.0.layer_norm',
    f'{_DECODER}/cross_attention/query': f'{_T5}.1.EncDecAttention.q',
    f'{_DECODER}/cross_attention/key': f'{_T5}.1.EncDecAttention.k',
    f'{_DECODER}/cross_attention/value': f'{_T5}.1.EncDecAttention.v',
    f'{_DECODER}/cross_attention/out': f'{_T5}.1.EncDecAttention.o',
    f'{_DECODER}/cross_attention_norm': f'{_T5}.1.layer_norm',
    f'{_DECODER}/feed_forward/up': f'{_T5}.2.DenseReluDense.wi',
    f'{_DECODER}/feed_forward/down': f'{_T5}.2.DenseReluDense.wo',
    f'{_DECODER}/feed_forward_norm': f'{_T5}.2.layer_norm',
    'decoder/norm': 'decoder.final_layer_norm',
    'decoder/head/dense': 'lm_head',
}
T5_GATED = {  # Layers with gates have the following two kernels instead of the kernel 'wi'.
    f'{_OURS}/feed_forward/gate': 'encoder.block.{layer}.layer.1.DenseReluDense.wi_0',
    f'{_OURS}/feed_forward/up': 'encoder.block.{layer}.layer.1.DenseReluDense.wi_1',
    f'{_DECODER}/feed_forward/gate': 'decoder.block.{layer}.layer.2.DenseReluDense.wi_0',
    f'{_DECODER}/feed_forward/up': 'decoder.block.{layer}.layer.2.DenseReluDense.wi_1',
}
_BART = '.encoder.layers.{layer}'
BART_ENCODER = {
    f'{_OURS}/attention/query': f'{_BART}.self_attn.q_proj',
    f'{_OURS}/attention/key': f'{_BART}.self_attn.k_proj',
    f'{_OURS}/attention/value': f'{_BART}.self_attn.v_proj',
    f'{_OURS}/attention/out': f'{_BART}.self_attn.out_proj',
    f'{_OURS}/attention_norm': f'{_BART}.self_attn_layer_norm',
    f'{_OURS}/feed_forward/up': f'{_BART}.fc1',
    f'{_OURS}/feed_forward/down': f'{_BART}.fc2',
    f'{_OURS}/feed_forward_norm': f'{_BART}.final_layer_norm',
}
_BART = '.decoder.layers.{layer}'
BART_DECODER = {
    'decoder/embeddings/token': '.shared',
    f'{_DECODER}/attention/query': f'{_BART}.self_attn.q_proj',
    f'{_DECODER}/attention/key': f'{_BART}.self_attn.k_proj',
    f'{_DECODER}/attention/value': f'{_BART}.self_attn.v_proj',
    f'{_DECODER}/attention/out': f'{_BART}.self_attn.out_proj',
    f'{_DECODER}/attention_norm': f'{_BART}.self_attn_layer_norm',
    f'{_DECODER}/cross_attention/query': f'{_BART}.encoder_attn.q_proj',
    f'{_DECODER}/cross_attention/key': f'{_BART}.encoder_attn.k_proj',
    f'{_DECODER}/cross_attention/value': f'{_BART}.encoder_attn.v_proj',
    f'{_DECODER}/cross_attention/out': f'{_BART}.encoder_attn.out_proj',
    f'{_DECODER}/cross_attention_norm': f'{_BART}.encoder_attn_layer_norm',
    f'{_DECODER}/feed_forward/up': f'{_BART}.fc1',
    f'{_DECODER}/feed_forward/down': f'{_BART}.fc2',
    f'{_DECODER}/feed_forward_norm': f'{_BART}.final_layer_norm',
    'decoder/head': 'final_logits_bias',
}
COPIES = ('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight')
SINUSOIDS = ('encoder.embed_positions.weight', 'decoder.embed_positions.weight')
GENERATION = ('ForConditionalGeneration',)

# ---- language models ----

_FUSED, _GPT2 = '.h.{layer}.attn.c_attn', '.h.{layer}'
GPT2_DECODER = {
    'decoder/embeddings/token': '.wte',
    'decoder/embeddings/position': '.wpe',
    f'{_DECODER}/attention_norm': f'{_GPT2}.ln_1',
    f'{_DECODER}/attention/query': _FUSED,
    f'{_DECODER}/attention/key': _FUSED,
    f'{_DECODER}/attention/value': _FUSED,
    f'{_DECODER}/attention/out': f'{_GPT2}.attn.c_proj',
    f'{_DECODER}/feed_forward_norm': f'{_GPT2}.ln_2',
    f'{_DECODER}/feed_forward/up': f'{_GPT2}.mlp.c_fc',
    f'{_DECODER}/feed_forward/down': f'{_GPT2}.mlp.c_proj',
    'decoder/norm': '.ln_f',
}
GPT2_MASKS = ('h.*.attn.bias', 'h.*.attn.masked_bias')  # buffers of the causal mask

T5 = HuggingFaceFamily(
    't5',
    'T5',
    '',
    encoder=T5_ENCODER,
    decoder=T5_DECODER,
    gated=T5_GATED,
    generators=(*GENERATION, 'WithLMHeadModel'),
    copies=COPIES,
    harmless=('decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight',),
    output_fields=('tied_output', 'dense_output_bias'),
)
FAMILIES = {
    family.model_type: family
    for family in (
        HuggingFaceFamily(
            'bert',
            'Bert',
            'bert',
            encoder=EMBEDDINGS | BERT_LAYERS,
            masked_lm=BERT_MASKED_LM,
            sequence=_tanh_pooled_head_names(BERT_POOLER),
            choice=_tanh_pooled_head_names(BERT_POOLER),
            span=SPAN,
            pooler=BERT_POOLER,
            pair='cls.seq_relationship',
        ),
        HuggingFaceFamily(
            'roberta',
            'Roberta',
            'roberta',
            encoder=EMBEDDINGS | BERT_LAYERS,
            masked_lm=ROBERTA_MASKED_LM,
            sequence=PooledHeadNames(TWO_LAYERS, 'tanh'),
            choice=_tanh_pooled_head_names(BERT_POOLER),
            span=SPAN,
            pooler=BERT_POOLER,
            is_masked_lm_erf=True,
        ),
        HuggingFaceFamily(
            'distilbert',
            'DistilBert',
            'distilbert',
            encoder=EMBEDDINGS | DISTILBERT_LAYERS,
            masked_lm={
                'masked_lm': 'vocab_projector',
                'masked_lm/transform': 'vocab_transform',
                'masked_lm/norm': 'vocab_layer_norm',
            },
            sequence=_BEFORE_CLASSIFIER,
            choice=_BEFORE_CLASSIFIER,
            span=SPAN,
        ),
        HuggingFaceFamily(
            'electra',
            'Electra',
            'electra',
            encoder=EMBEDDINGS | BERT_LAYERS | {'encoder/embeddings/projection': '.embeddings_project'},
            masked_lm={
                'masked_lm': 'generator_lm_head',
                'masked_lm/transform': 'generator_predictions.dense',
                'masked_lm/norm': 'generator_predictions.LayerNorm',
            },
            sequence=PooledHeadNames(TWO_LAYERS, 'gelu_erf'),
            choice=PooledHeadNames({'pooler/dense': 'sequence_summary.summary', 'head/out': 'classifier'}, 'gelu_erf'),
            span=SPAN,
            detector={
                'detector/dense': 'discriminator_predictions.dense',
                'detector/out': 'discriminator_predictions.dense_prediction',
            },
            is_masked_lm_erf=True,
        ),
        HuggingFaceFamily(
            'albert',
            'Albert',
            'albert',
            encoder=EMBEDDINGS
            | ALBERT_LAYERS
            | {'encoder/embeddings/projection': '.encoder.embedding_hidden_mapping_in'},
            masked_lm={
                'masked_lm': 'predictions',
                'masked_lm/transform': 'predictions.dense',
                'masked_lm/norm': 'predictions.LayerNorm',
            },
            sequence=_tanh_pooled_head_names('.pooler'),
            choice=_tanh_pooled_head_names('.pooler'),
            span=SPAN,
            pooler='.pooler',
            pair='sop_classifier.classifier',
        ),
        HuggingFaceFamily(
            'big_bird',
            'BigBird',
            'bert',
            encoder=EMBEDDINGS | BERT_LAYERS,
            masked_lm=BERT_MASKED_LM,
            sequence=PooledHeadNames(TWO_LAYERS, ''),
            choice=_tanh_pooled_head_names('.pooler'),
            span={
                'head/inner': 'qa_classifier.intermediate.dense',
                'head/outer': 'qa_classifier.output.dense',
                'head/norm': 'qa_classifier.output.LayerNorm',
                'head/out': 'qa_classifier.qa_outputs',
            },
            pooler='.pooler',
            pair='cls.seq_relationship',
        ),
        HuggingFaceFamily(
            'longformer',
            'Longformer',
            'longformer',
            encoder=EMBEDDINGS | BERT_LAYERS,
            masked_lm=ROBERTA_MASKED_LM,
            sequence=PooledHeadNames(TWO_LAYERS, 'tanh'),
            choice=_tanh_pooled_head_names(BERT_POOLER),
            span=SPAN,
            pooler=BERT_POOLER,
            is_masked_lm_erf=True,
        ),
        T5,
        dataclasses.replace(T5, model_type='mt5', stem='MT5', generators=GENERATION),
        HuggingFaceFamily(
            'bart',
            'Bart',
            'model',
            encoder=BART_ENCODER
            | {
                'encoder/embeddings/position': '.encoder.embed_positions',
                'encoder/embeddings/norm': '.encoder.layernorm_embedding',
            },
            decoder=BART_DECODER
            | {
                'decoder/embeddings/position': '.decoder.embed_positions',
                'decoder/embeddings/norm': '.decoder.layernorm_embedding',
            },
            generators=GENERATION,
            copies=COPIES,
            harmless=('encoder.version', 'decoder.version', 'final_logits_bias'),
            output_fields=('output_bias',),
        ),
        HuggingFaceFamily(
            'marian',
            'Marian',
            'model',
            encoder=BART_ENCODER,
            decoder=BART_DECODER,
            generators=('MTModel',),
            copies=COPIES,
            harmless=(*SINUSOIDS, 'final_logits_bias'),
            output_fields=('output_bias',),
        ),
        HuggingFaceFamily(
            'pegasus',
            'Pegasus',
            'model',
            encoder=BART_ENCODER | {'encoder/norm': '.encoder.layer_norm'},
            decoder=BART_DECODER | {'decoder/norm': '.decoder.layer_norm'},
            generators=GENERATION,
            copies=COPIES,
            harmless=(*SINUSOIDS, 'final_logits_bias'),
            output_fields=('output_bias',),
        ),
        HuggingFaceFamily(
            'gpt2',
            'GPT2',
            'transformer',
            encoder={},
            decoder=GPT2_DECODER,
            generators=('LMHeadModel',),
            copies=('lm_head.weight',),
            harmless=GPT2_MASKS,
            is_input_first=True,
            fused=(_FUSED,),
        ),
    )
}
