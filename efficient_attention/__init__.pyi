"""Gives type checkers and editors the public names, which __init__.py imports on first use."""

from efficient_attention.attention.attend import attend as attend
from efficient_attention.attention.attend import attention_weights as attention_weights
from efficient_attention.attention.draw_operands import draw_operands as draw_operands
from efficient_attention.attention.entmax.definition import Entmax as Entmax
from efficient_attention.attention.favor.definition import FAVOR as FAVOR
from efficient_attention.attention.hard.definition import Hard as Hard
from efficient_attention.attention.implementation import Implementation as Implementation
from efficient_attention.attention.induced.definition import Induced as Induced
from efficient_attention.attention.linear.definition import Linear as Linear
from efficient_attention.attention.linformer.definition import Linformer as Linformer
from efficient_attention.attention.local_p.definition import LocalP as LocalP
from efficient_attention.attention.logits.definition import PatternAttention as PatternAttention
from efficient_attention.attention.logits.implementation_factory import (
    make_pattern_implementation as make_pattern_implementation,
)
from efficient_attention.attention.lsh.definition import LSH as LSH
from efficient_attention.attention.mechanism import Mechanism as Mechanism
from efficient_attention.attention.nystrom.definition import Nystrom as Nystrom
from efficient_attention.attention.parsing import add_mechanism as add_mechanism
from efficient_attention.attention.parsing import parse_mechanism as parse_mechanism
from efficient_attention.attention.parsing import parse_pattern as parse_pattern
from efficient_attention.attention.patterns import Block as Block
from efficient_attention.attention.patterns import Causal as Causal
from efficient_attention.attention.patterns import Full as Full
from efficient_attention.attention.patterns import GlobalTokens as GlobalTokens
from efficient_attention.attention.patterns import ListedTiles as ListedTiles
from efficient_attention.attention.patterns import PerHead as PerHead
from efficient_attention.attention.patterns import Prefix as Prefix
from efficient_attention.attention.patterns import RandomTiles as RandomTiles
from efficient_attention.attention.patterns import Strided as Strided
from efficient_attention.attention.patterns import Summary as Summary
from efficient_attention.attention.patterns import Window as Window
from efficient_attention.attention.patterns import dense_mask as dense_mask
from efficient_attention.attention.patterns.presets import bigbird as bigbird
from efficient_attention.attention.patterns.presets import longformer as longformer
from efficient_attention.attention.patterns.presets import sparse_fixed as sparse_fixed
from efficient_attention.attention.patterns.presets import sparse_strided as sparse_strided
from efficient_attention.attention.relative import Relative as Relative
from efficient_attention.attention.request import Lengths as Lengths
from efficient_attention.attention.routing.definition import Routing as Routing
from efficient_attention.attention.sinkhorn.definition import Sinkhorn as Sinkhorn
from efficient_attention.attention.softmax.definition import Softmax as Softmax
from efficient_attention.attention.sparsemax.definition import Sparsemax as Sparsemax
from efficient_attention.attention.synthesizer.definition import Synthesizer as Synthesizer
from efficient_attention.config.model import ModelConfig as ModelConfig
from efficient_attention.errors import InputError as InputError
from efficient_attention.inference.load import load as load
from efficient_attention.inference.pipeline import pipeline as pipeline
from efficient_attention.inspection.attention_page import attention_page as attention_page
from efficient_attention.models.decoder import Decoder as Decoder
from efficient_attention.models.encoder import Encoder as Encoder
from efficient_attention.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from efficient_attention.scoring.open_scorer import open_scorer as open_scorer
from efficient_attention.training.from_python import evaluate as evaluate
from efficient_attention.training.from_python import train as train

__version__: str
__all__: list[str]
_TRAIN: frozenset[str]
