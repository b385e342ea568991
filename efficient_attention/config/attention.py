"""Fields of an attention sub-layer, a part of the config group `model`."""

import dataclasses
import math

from efficient_attention.attention.attend import BACKENDS
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import model_needs, parse_mechanism
from efficient_attention.config.checks import check_one_of
from efficient_attention.config.fields import CHANGEABLE, EXPORTED, marked, read_by
from efficient_attention.errors import InputError, require

WITHOUT_BACKENDS = ('auto', 'blocked', 'reference')  # which any mechanism serves


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Heads, mechanism and projections of an attention sub-layer.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    width: int = 128  # D
    heads: int = 2  # H
    head_width: int = 0  # K; 0 = width / heads
    # a mechanism's text form, or several with ';', which the layers take in turn
    attention: str = marked(EXPORTED, default='full')
    # 'auto' | 'reference' | 'dense' | 'blocked' | 'jax_nn' | 'cudnn'
    attention_backend: str = marked(CHANGEABLE, EXPORTED, default='auto')
    # what an encoder-decoder's decoder reads the encoder by: full, favor or linear attention, slots (linformer,
    # induced), a window by positions, a distribution such as entmax over these, or places that tokens predict, local_p
    cross_attention: str = read_by('text_to_text', default='full', marks=(EXPORTED,))
    attention_bias: bool = True  # biases in the query, key, value and output projections; Reformer has none
    scaled_logits: bool = True  # products of queries and keys times 1 / sqrt(K); T5's are left as they are
    shared_qk: bool = False  # one projection for queries and keys, keys of unit length; LSH needs it
    # most tokens of a row that data may mark as global; above 0 adds their projections
    global_tokens: int = read_by('fine_tuning', default=0, marks=(EXPORTED,))
    rotary: bool = False  # rotate queries and keys by position (Su et al. 2021, arXiv 2104.09864)
    attention_dropout_rate: float = 0.1  # on attention weights

    def __post_init__(self) -> None:
        require(self.heads >= 1, 'model.heads', self.heads, 'at least 1')
        is_divisor = self.width % self.heads == 0
        allowed = f'a divisor of model.width {self.width}, or set model.head_width'
        require(is_divisor or self.head_width > 0, 'model.heads', self.heads, allowed)
        object.__setattr__(self, 'head_width', self.head_width or self.width // self.heads)
        for name in ('width', 'head_width'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        rate = self.attention_dropout_rate
        require(0.0 <= rate < 1.0, 'model.attention_dropout_rate', rate, 'in [0, 1)')
        fits = not self.rotary or self.head_width % 2 == 0
        require(fits, 'model.head_width', self.head_width, 'even for rotary positions')
        check_one_of('model.attention_backend', self.attention_backend, ('auto', *BACKENDS))
        require(self.global_tokens >= 0, 'model.global_tokens', self.global_tokens, '0 or more')
        if self.global_tokens and not all(mechanism.form.merges for mechanism in self.mechanisms):
            raise InputError(
                f'model.global_tokens is {self.global_tokens}; model.attention {self.attention!r} has none'
            )
        self._check_learned()
        for mechanism in self.mechanisms:
            self._check_mechanism(mechanism)
            self._check_backend('model.attention', self.attention, mechanism)
        self._check_backend('model.cross_attention', self.cross_attention, self.cross_mechanism)
        self._check_cross_mechanism()

    def _check_learned(self) -> None:
        learning = [one for one in self.mechanisms if one.learned_operands(self.heads, self.head_width)]
        if learning and len(self.mechanisms) > 1:
            raise InputError(
                f'model.attention {self.attention!r}: {learning[0].name} learns arrays of its own, and layers that '
                'take mechanisms in turn are made alike; let it be the only one'
            )
        operands = self.cross_mechanism.learned_operands(self.heads, self.head_width)
        if any(operand.is_shared for operand in operands.values()):
            raise InputError(
                f'model.cross_attention {self.cross_attention!r}: arrays that all layers share are served in '
                'model.attention alone'
            )

    def _check_cross_mechanism(self) -> None:
        mechanism, text = self.cross_mechanism, self.cross_attention
        if not mechanism.reads_other_sequence:
            raise InputError(
                f'model.cross_attention {text!r} {mechanism.reads.why_one_row}; use full, window(w), sparsemax(full), '
                'favor, linear, linformer(rank, length) or induced, none of them causal'
            )
        mechanism.check_heads(self.heads)
        if not mechanism.form.has_dropout and self.attention_dropout_rate:
            raise InputError(f'model.cross_attention {text!r} needs model.attention_dropout_rate=0.0')

    def _check_backend(self, field: str, text: str, mechanism: Mechanism) -> None:
        backend = self.attention_backend
        if backend not in WITHOUT_BACKENDS and not mechanism.form.has_backends:
            raise InputError(
                f'model.attention_backend {backend!r} executes softmax, and {field} {text!r} has one fast form; use '
                f'{", ".join(WITHOUT_BACKENDS)}'
            )

    def _check_mechanism(self, mechanism: Mechanism) -> None:
        if mechanism.draws.in_training:
            raise InputError(
                f'model.attention {self.attention!r} draws keys, from which model.cross_attention alone learns; leave '
                'sampled=True out here'
            )
        if not mechanism.reads.own_row:
            raise InputError(
                f'model.attention {self.attention!r} predicts places in another sequence: use it as '
                'model.cross_attention, and window(w) here'
            )
        mechanism.check_heads(self.heads)
        self._check_compared(mechanism)
        has_keys = self.shared_qk or not mechanism.needs.shared_qk
        has_dropout = mechanism.form.has_dropout or self.attention_dropout_rate == 0.0
        if not (has_keys and has_dropout):
            name = type(mechanism).__name__
            raise InputError(f'model.attention {self.attention!r}: {name} needs {model_needs(mechanism)}')
        if not self.scaled_logits and mechanism.needs.shared_qk:
            raise InputError(f'model.scaled_logits is False; model.attention {self.attention!r} scales by unit keys')

    def _check_compared(self, mechanism: Mechanism) -> None:
        if mechanism.reads.queries and mechanism.reads.keys:
            return
        needed = {'shared_qk': False, 'rotary': False, 'score': 'dot', 'scaled_logits': True}
        for name, value in needed.items():
            found = getattr(self, name, value)
            allowed = f'{value!r} with model.attention {self.attention!r}, which compares no queries with keys'
            require(found == value, f'model.{name}', found, allowed)
        is_free = getattr(self, 'relative', 'none') != 'transformer_xl'
        allowed = f'another with model.attention {self.attention!r}, which compares no queries with keys'
        require(is_free, 'model.relative', 'transformer_xl', allowed)

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms that layers take in turn."""
        return tuple(parse_mechanism(text) for text in self.attention.split(';'))

    @property
    def cross_mechanism(self) -> Mechanism:
        """The mechanism of all layers' cross-attention."""
        return parse_mechanism(self.cross_attention)

    @property
    def logit_scale(self) -> float:
        """What products of queries and keys are multiplied by beside attention's 1 / sqrt(K)."""
        return 1.0 if self.scaled_logits else math.sqrt(self.head_width)

    @property
    def reads_length(self) -> bool:
        """Whether padding at the end of a row may change what its tokens read."""
        return any(mechanism.reads.by_length for mechanism in self.mechanisms)
