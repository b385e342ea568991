"""Holds valid sample files of every kind for scripts/stress/fuzz_readers.py, and words from which it builds inputs."""

import io
import json
import struct
from typing import Any

import pyarrow
from pyarrow import parquet

from efficient_attention.data.sources.tfrecord import masked_crc32c


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON text, encoded in UTF-8."""
    return json.dumps(value, ensure_ascii=False).encode('utf-8', 'surrogatepass')


def arrow_bytes() -> bytes:
    """Returns a stream of Arrow with two columns."""
    file = io.BytesIO()
    with pyarrow.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return file.getvalue()


def parquet_bytes() -> bytes:
    """Returns a Parquet file with two columns."""
    file = io.BytesIO()
    parquet.write_table(TABLE, file)
    return file.getvalue()


def tfrecord_bytes(*records: bytes) -> bytes:
    """Returns a TFRecord file with these records."""
    lengths = [struct.pack('<Q', len(record)) for record in records]
    return b''.join(
        length + struct.pack('<I', masked_crc32c(length)) + record + struct.pack('<I', masked_crc32c(record))
        for length, record in zip(lengths, records, strict=True)
    )


TABLE = pyarrow.table({'text': ['A dog.', 'B'], 'tags': [['a', 'b'], []]})
PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', '##s', 'dog']
WORD_PIECE = {
    'type': 'WordPiece',
    'unk_token': '[UNK]',
    'continuing_subword_prefix': '##',
    'max_input_chars_per_word': 100,
    'vocab': {piece: id for id, piece in enumerate(PIECES)},
}
TOKENIZER = {
    'version': '1.0',
    'truncation': {'direction': 'Right', 'max_length': 8, 'strategy': 'LongestFirst', 'stride': 0},
    'padding': None,
    'added_tokens': [
        {'id': 4, 'content': '[MASK]', 'single_word': False, 'lstrip': True, 'rstrip': False}
        | {'normalized': False, 'special': True}
    ],
    'normalizer': {'type': 'Replace', 'pattern': {'String': '``'}, 'content': '"'},
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'post_processor': None,
    'decoder': {'type': 'WordPiece', 'prefix': '##', 'cleanup': True},
    'model': WORD_PIECE,
}
SQUAD = {'id': 'a', 'question': 'Who?', 'answers': [{'text': 'dog', 'answer_start': 4}], 'is_impossible': False}
HOTPOT = {'_id': 'a', 'question': 'Who?', 'answer': 'dog', 'supporting_facts': [['t', 0]], 'context': [['t', ['A.']]]}
MUSIQUE = {
    'id': 'a',
    'question': 'Who?',
    'answer': 'dog',
    'answer_aliases': [],
    'answerable': True,
    'paragraphs': [{'title': 't', 'paragraph_text': 'A dog.', 'is_supporting': True}],
}
RACE = {'id': 'a', 'article': 'A dog.', 'questions': ['Who?'], 'options': [['a', 'b']], 'answers': ['A']}
BERT = {
    'model_type': 'bert',
    'architectures': ['BertForSequenceClassification'],
    **{'vocab_size': 30, 'hidden_size': 16, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 32},
    **{'hidden_act': 'gelu', 'max_position_embeddings': 24, 'type_vocab_size': 2, 'layer_norm_eps': 1e-12},
    'id2label': {'0': 'bad', '1': 'good'},
    'classifier_dropout': 0.1,
    'efficient_attention': {'model': {'attention': 'window(8)'}, 'examples': {}, 'thresholds': {'threshold': 0.5}},
}
LONGFORMER = BERT | {'model_type': 'longformer', 'architectures': ['LongformerModel'], 'attention_window': [4, 4]}
T5 = {
    'model_type': 't5',
    'architectures': ['T5ForConditionalGeneration'],
    'vocab_size': 11,
    'd_model': 8,
    'd_kv': 4,
    'd_ff': 8,
    'num_layers': 1,
    'num_heads': 2,
    'feed_forward_proj': 'gated-gelu',
    'scale_decoder_outputs': False,
}
MARIAN = {
    'model_type': 'marian',
    'architectures': ['MarianMTModel'],
    'vocab_size': 11,
    'd_model': 8,
    'encoder_layers': 1,
    'decoder_layers': 1,
    'encoder_attention_heads': 2,
    'decoder_attention_heads': 2,
    'encoder_ffn_dim': 8,
    'decoder_ffn_dim': 8,
    'scale_embedding': True,
}
RUN = {'task': 'pretraining', 'data': {'length': 16}, 'model': {'width': 16, 'layers': 2, 'attention': 'window(4)'}}
HEADER = json_bytes(
    {
        '__metadata__': {'format': 'pt'},
        'a.weight': {'dtype': 'F32', 'shape': [2, 2], 'data_offsets': [0, 16]},
        'b.bias': {'dtype': 'F16', 'shape': [2], 'data_offsets': [16, 20]},
    }
)
METRICS = b'{"step": 1, "split": "train", "loss": 2.5}\n{"step": 1, "split": "held_out", "loss": "nan"}\n'
CONLL = b'-DOCSTART- O\n\nThe\tDT\ndog\tNN\n\nIt NP\n'
CONLLU = b'# text = A dog\n1\tA\ta\tDET\t_\t_\t2\tdet\t_\t_\n1-2\tAd\t_\t_\t_\t_\t_\t_\t_\t_\n\n'
SEAL = b'# step 1\n' + b'0' * 64 + b'  state/metadata\n# ' + b'0' * 64 + b'\n'
DUMP = b"""<mediawiki><page><title>Dog</title><ns>0</ns><revision><model>wikitext</model><text xml:space="preserve">
A '''dog''' is an [[animal|beast]].{{stub|a}}<ref name="x">y</ref> {| class="a" |- | b |}</text></revision></page>
</mediawiki>"""
WIKI_WORDS = (
    '<page>',
    '</page>',
    '<text>',
    '</text>',
    '<ns>',
    '{{',
    '}}',
    '[[',
    ']]',
    '{|',
    '|}',
    '&lt;ref&gt;',
    '<!--',
)
PATTERN_WORDS = (
    *('full', 'causal', 'window', 'block', 'strided', 'bigbird', 'longformer', 'global_tokens', 'per_head', 'prefix'),
    *('listed_tiles', 'random_tiles', 'summary', 'sparse_fixed', 'lsh', 'favor', 'linear', 'rounds', 'features'),
    *('causal=True', 'bucket_size=4', '(', ')', ',', '=', '&', '|', '-', ' ', '0', '1', '8', '64', '10000000000'),
    *('[', ']', '.', 'lambda: ', '__import__("os")', '*', '**', 'not ', 'if', ';', '#'),
)
