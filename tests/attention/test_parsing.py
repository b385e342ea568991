"""Tests the text form of patterns and mechanisms: what the parser reads and refuses, and that it evaluates no code."""

import pytest

from efficient_attention.attention.entmax.definition import Entmax
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.hard.definition import Hard
from efficient_attention.attention.local_p.definition import LocalP
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import MECHANISMS, PATTERNS, parse_mechanism, parse_pattern
from efficient_attention.attention.patterns import (
    And,
    Block,
    Causal,
    Difference,
    Full,
    GlobalTokens,
    ListedTiles,
    Or,
    Pattern,
    PerHead,
    Prefix,
    RandomTiles,
    Strided,
    Summary,
    Window,
)
from efficient_attention.attention.sinkhorn.definition import Sinkhorn
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.sparsemax.definition import Sparsemax
from efficient_attention.errors import InputError

TEXTS: dict[str, Pattern] = {
    'full': Full(),
    ' causal ': Causal(),
    'causal()': Causal(),
    'window(3)': Window(3),
    'prefix(4)': Prefix(4),
    'window(radius=3, dilation=2)': Window(3, 2),
    'block(8, back=1)': Block(8, 1),
    'strided(16)': Strided(16),
    'summary(8, 2)': Summary(8, 2),
    'global_tokens(2)': GlobalTokens(2),
    'global_tokens(2, last=1)': GlobalTokens(2, 1),
    'random_tiles(2, 16)': RandomTiles(2, 16),
    'random_tiles(per_row=2, size=16, seed=7)': RandomTiles(2, 16, 7),
    'listed_tiles(16, 2, 5, 3, 7)': ListedTiles(16, (2, 5, 3, 7)),
    'causal & (window(128) | global_tokens(2))': And(Causal(), Or(Window(128), GlobalTokens(2))),
    'causal & window(1) | full': Or(And(Causal(), Window(1)), Full()),  # The operator & binds tighter than |.
    'full - window(1) & causal': And(Difference(Full(), Window(1)), Causal()),  # The operator - binds tighter than &.
    'per_head(causal & window(9), full)': PerHead(And(Causal(), Window(9)), Full()),
    'longformer(4, 2)': Or(Window(4), GlobalTokens(2)),
    'bigbird(16, 2, seed=1)': Or(Or(Block(16, 1, 1), GlobalTokens(16, 16)), RandomTiles(2, 16, seed=1, near=1, ends=1)),
    'sparse_fixed(16, 4)': And(Causal(), Or(Block(16), Summary(16, 4))),
    'sparse_strided(16)': And(Causal(), Or(Window(16), Strided(16))),
    'sparse_fixed': And(Causal(), Or(Block(128), Summary(128, 8))),
}


@pytest.mark.parametrize('text', ['nystrom(4)', 'sparsemax', 'lsh(64, 2)'])
def test_a_mechanism_alone_is_no_pattern(text: str):
    with pytest.raises(InputError, match=r'is a mechanism, not a pattern$'):
        parse_pattern(text)


@pytest.mark.parametrize('text', TEXTS)
def test_patterns_are_read(text: str):
    assert parse_pattern(text) == TEXTS[text]
    assert parse_mechanism(text) == Softmax(TEXTS[text])


def test_every_name_is_read_above():
    assert not [name for name in PATTERNS if not any(name in text for text in TEXTS)]


@pytest.mark.parametrize(
    'text, mechanism',
    [
        ('lsh', LSH()),
        ('lsh(bucket_size=32, rounds=2, causal=True)', LSH(32, 2, causal=True)),
        ('favor(features=64)', FAVOR(64)),
        ('sparsemax', Sparsemax()),
        ('sparsemax(causal & window(64))', Sparsemax(Causal() & Window(64))),
        ('entmax(pattern=causal)', Entmax(Causal())),
        ('hard(causal)', Hard(Causal())),
        ("local_p(4, 'entmax')", LocalP(4, 'entmax')),
        ('sinkhorn(4, 8, temperature=0.75)', Sinkhorn(4, 8)),
        ('sinkhorn(4, 8, 2, 1.5e-1, cut=3)', Sinkhorn(4, 8, 2, 0.15, 3)),
        ('sinkhorn(4, 8, temperature=2)', Sinkhorn(4, 8, temperature=2.0)),
        ("favor(64, kernel='relu', orthogonal=False)", FAVOR(64, kernel='relu', orthogonal=False)),
    ],
)
def test_mechanisms_are_read(text: str, mechanism: Mechanism):
    assert parse_mechanism(text) == mechanism


@pytest.mark.parametrize('number', [0.75, 0.1, 1e-3, 1 / 3, 2.0, 12345.678, 5e-324, 1.7976931348623157e308])
def test_a_number_with_a_point_is_read_as_it_is_printed(number: float):
    mechanism = parse_mechanism(f'sinkhorn(64, 32, temperature={number})')
    assert isinstance(mechanism, Sinkhorn) and mechanism.temperature == number
    assert str(mechanism) == f'Sinkhorn(block=64, blocks=32, iterations=8, temperature={number}, cut=0, causal=False)'
    assert parse_mechanism(str(mechanism).replace('Sinkhorn', 'sinkhorn')) == mechanism


BAD = {
    'windw(3)': f"unknown name 'windw'; did you mean window? known: {', '.join(sorted((*PATTERNS, *MECHANISMS)))}",
    'causal & windw(3)': "unknown name 'windw'; did you mean window? known: ",
    'causal &': "attention 'causal &' cannot be read: something is missing at its end",
    '': "attention is ''; it must be a text such as",
    'causal(': "attention 'causal(': missing ) for the ( at column 7",
    'causal & (window(2) | block(3': "attention 'causal & (window(2) | block(3': missing ) for the ( at column 28",
    'window(2))': "attention 'window(2))': the ) at column 10 has no (; leave it out",
    ' window(2 3)': "attention ' window(2 3)' cannot be read at column 9, from '2 3)' on",
    'causal\0': 'cannot be read',
    'causal; full': "attention 'causal; full' cannot be read at column 7, from '; full' on",
    'causal + full': 'neither a pattern nor a combination',
    'not causal': 'neither a pattern nor a combination',
    '~causal': 'neither a pattern nor a combination',
    '3': 'neither a pattern nor a combination',
    'window': 'window takes (radius, dilation=1)',
    'causal(2)': 'causal',
    'window(3, width=2)': 'width',
    'window(1, 2, 3)': 'window takes (radius, dilation=1)',
    'window(radius=1, radius=2)': 'radius is given twice',
    'random_tiles(3, 64, near=1)': 'random_tiles takes (per_row, size, seed=0)',
    'window(500000, 100000)': 'reach is 50000000000; it must be at most 2147483647',
    'window(0.5)': "'0.5' is not a whole number",
    'window(True)': "'True' is not a whole number",
    'window(-1)': 'radius is -1; it must be at least 0',
    'window(3, dilation=0)': 'dilation is 0; it must be at least 1',
    'block(0)': 'size is 0; it must be at least 1',
    'strided(0)': 'stride is 0; it must be at least 1',
    'summary(4, 9)': 'width must be at most block',
    'global_tokens(0)': 'count or last must be at least 1',
    'random_tiles(0, 4)': 'per_row is 0; it must be at least 1',
    'bigbird(0)': 'size is 0; it must be at least 1',
    'per_head()': 'at least one pattern',
    'per_head(3)': "'3' is neither a pattern nor",
    'window(*causal)': 'not a whole number',
    'window(**causal)': 'not a whole number',
    'window(2, **3)': 'window takes (radius, dilation=1)',
    'window(2)(3)': 'neither a pattern nor a combination',
    'lsh & causal': 'lsh is a mechanism, not a pattern or part of one; write it alone, with '
    'model.shared_qk=True, causal=True among its arguments where it is in a language model',
    'window(__import__("os"))': 'not a whole number',
    '__import__("os").system("x")': 'neither a pattern nor a combination',
    '__import__("os")': "unknown name '__import__'",
    '(1).__class__': 'neither a pattern nor a combination',
    '[window(1) for _ in full]': 'neither a pattern nor a combination',
    'lambda: causal': 'neither a pattern nor a combination',
    'window(9 ** 9 ** 9)': 'not a whole number',
    '(' * 300 + 'full' + ')' * 300: 'cannot be read',
}


@pytest.mark.parametrize('text', BAD, ids=lambda text: text[:40])
def test_bad_text_gives_one_line(text: str):
    with pytest.raises(InputError) as caught:
        parse_pattern(text)
    assert BAD[text] in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'text, message',
    [
        ('cosine', "unknown name 'cosine'; known: bigbird"),
        ('lsh(rounds=0)', 'lsh rounds is 0; it must be at least 1'),
        ('lsh(bucket_size=window(3))', 'neither a number, True, False nor a name'),
        ('favor(kernel="elu")', "favor kernel is 'elu'; it must be one of"),
        ('favor(size=3)', "favor takes (features=256, causal=False, kernel='softmax', orthogonal=True, chunk=128)"),
        ('favor & causal', 'favor is a mechanism, not a pattern'),
        ('favor(-3)', 'favor features is -3; it must be at least 1'),
        ('lsh(True)', 'lsh bucket_size is True; it must be a whole number'),
        ('favor(features="x")', "favor features is 'x'; it must be a whole number"),
        ('sparsemax(3)', 'sparsemax pattern is 3; it must be a pattern'),
        ('entmax(windw(3))', "unknown name 'windw'"),
        ('sparsemax(causal, full)', 'sparsemax takes (pattern=Full())'),
        ('sparsemax & causal', 'or part of one; write sparsemax(...) around the whole pattern'),
        ('sparsemax(entmax(causal))', 'entmax is a mechanism, not a pattern'),
        ('favor(64.0)', 'favor features is 64.0; it must be a whole number'),
        ('lsh(rounds=-0.5)', 'lsh rounds is -0.5; it must be a whole number'),
        ('favor(causal=1.0)', 'favor causal is 1.0; it must be True or False'),
        ("sinkhorn(temperature='hot')", "sinkhorn temperature is 'hot'; it must be a number, such as 0.75"),
        ('sinkhorn(temperature=2j)', "'2j' is neither a number, True, False nor a name"),
        ('sinkhorn(temperature=1 / 2)', "'1 / 2' is neither a number, True, False nor a name"),
        ('sparsemax(0.5)', 'sparsemax pattern is 0.5; it must be a pattern'),
        ('favor(causal=1)', 'favor causal is 1; it must be True or False'),
        (
            'linformer(16, 1000, causal=True)',
            'linformer has no option causal; write another mechanism, as linformer has',
        ),
        ('nystrom(0, causal=True)', 'nystrom landmarks is 0; it must be'),
        ('entmax(window(3), causal=True)', "entmax has no option causal; write 'entmax(causal & (window(3)))', which"),
        ("synthesizer('random', 9, causal=True)", "write 'synthesizer('random', 9, pattern=causal)'"),
        ('induced(8, causal=True, depth=2)', 'induced takes (points=64)'),
        ('induced(8, depth=2)', 'induced takes (points=64)'),
    ],
)
def test_bad_mechanisms_give_one_line(text: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_mechanism(text)
    assert message in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'text', [' | '.join(['full'] * 5000), f'window({"-" * 900}1)', '-' * 100_000], ids=['unions', 'argument', 'signs']
)
def test_a_text_that_nests_deeper_than_python_can_is_one_line_too(text: str):
    with pytest.raises(InputError, match='nested too deeply'):
        parse_pattern(text)
