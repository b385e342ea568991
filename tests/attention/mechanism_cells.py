"""Tables of mechanisms other than `Softmax` with options of a call: which are supported, and how others are refused."""

# For each option: a word of the refusal by the blocked backend,
# or None where the result equals the reference.
# Padding without other options and without dropout is in test_registry.py, and at every length in test_definitions.py.
LSH_CELLS = {
    'bias': 'lsh has no bias',
    'key bias': 'lsh has no bias',
    'function bias': 'lsh has no bias',
    'cross': 'lsh has no cross attention: 20 queries and 90 keys',
    'offset': 'lsh has no cross attention',
    'row positions': 'lsh has no cross attention',
    'grouped': 'lsh has no grouped heads: 4 query and 2 key heads',
}
FAVOR_CELLS = {
    'padding segments grouped': None,
    'bias': 'favor has no additive bias',
    'key bias': 'favor has no additive bias',
    'function bias': 'favor has no additive bias',
    'dropout': 'favor has no dropout on weights',
    'lse': 'favor has no log-sum-exp',
}
OTHER_POSITIONS = 'favor has no causal form for other positions than 0, 1'
MECHANISM_CELLS = {
    'lsh(8, 2)': LSH_CELLS | {'padding segments lse': None, 'dropout': None},
    'lsh(8, 2, causal=True)': LSH_CELLS | {'padding segments dropout lse': None},
    # Rows of one segment and padding use another code path than packed rows.
    'favor(8)': FAVOR_CELLS | {'padding': None, 'cross': None, 'offset': None},
    'favor(8, causal=True, chunk=8)': FAVOR_CELLS
    | dict.fromkeys(('cross', 'offset', 'traced offset', 'row positions'), OTHER_POSITIONS),
}
# Packed rows of ungrouped heads, of each kind, are in test_registry.py.
LINEAR_CELLS = dict.fromkeys(('cross', 'offset')) | {
    'dropout': 'linear has no dropout on weights',
    'lse': 'linear has no log-sum-exp',
}
MECHANISM_CELLS |= {
    'linear()': LINEAR_CELLS | {'padding segments grouped': None},
    'linear(causal=True, chunk=8)': {'dropout': 'linear has no dropout on weights'},
    "linear('cos', 90)": LINEAR_CELLS,
    "linear('cos', 90, causal=True, chunk=8)": {
        'padding segments grouped': None,
        'bias': 'linear has no additive bias',
    },
    "linear('cos', 19)": {'plain': 'linear has no support for 20 positions, only for up to 19'},
}
# These mechanisms read no positions.
ROW_CELLS = dict.fromkeys(('cross grouped', 'grouped', 'offset', 'row positions'))
ROW_CELLS |= dict.fromkeys(('bias', 'key bias', 'function bias'), r'\w+ has no additive bias')
ROW_CELLS |= {'lse': r'\w+ has no log-sum-exp'}
MECHANISM_CELLS |= {
    'linformer(5, 90)': ROW_CELLS | {'dropout': None},
    'linformer(5, 90, tied=False, by_head=True)': {'padding dropout': None, 'cross grouped': None},
    'linformer(5, 19)': {'plain': 'linformer has no support for 20 keys, only for up to 19'},
    'nystrom(6)': ROW_CELLS | {'dropout': 'nystrom has no dropout on weights'},
    'nystrom(4, 6, 5)': {'padding grouped': None, 'cross': 'nystrom has no convolution for unequal lengths'},
    'induced(5)': ROW_CELLS | {'dropout': 'induced has no dropout on weights'},
}
NO_CROSS = 'sinkhorn has no cross attention: 20 queries and 90 keys'
SINKHORN_CELLS = ROW_CELLS | {'padding dropout grouped': None}
SINKHORN_CELLS |= dict.fromkeys(('cross grouped', 'offset', 'traced offset', 'row positions'), NO_CROSS)
MECHANISM_CELLS |= {
    'sinkhorn(6, 15)': SINKHORN_CELLS,
    'sinkhorn(4, 25, 3, cut=2)': SINKHORN_CELLS,
    'sinkhorn(6, 15, causal=True)': SINKHORN_CELLS,
    'sinkhorn(5, 3)': {'plain': 'sinkhorn has no support for 20 keys, only for up to 15'},
}
ROUTING_CELLS = {
    'padding segments grouped': None,
    'bias': 'routing has no additive bias',
    'lse': 'routing has no log-sum-exp',
    'cross grouped': 'routing has no cross attention: 20 queries and 90 keys',
    'offset': 'routing has no cross attention: 20 queries and 90 keys',
}
MECHANISM_CELLS |= {
    'routing(4, 6)': ROUTING_CELLS | {'dropout': None},
    'routing(3, 9, causal=True)': ROUTING_CELLS
    | {'padding dropout grouped': None, 'row positions': 'routing has no cross attention'},
    'routing(4, 6, local_heads=2, window=4)': ROUTING_CELLS | {'padding dropout grouped': None},
    'routing(4, 6, local_heads=1, window=30, causal=True)': ROUTING_CELLS | {'dropout': None},
}
# The kinds differ only in their logits, which depend on positions and heads.
PACKED, CONTINUED, PLACED = (
    dict.fromkeys([option])
    for option in (
        'grouped segments bias lse',
        'offset dropout lse function bias',
        'row positions padding lse key bias',
    )
)
MECHANISM_CELLS |= {
    "synthesizer('dense', 90, pattern=causal)": PACKED | CONTINUED | PLACED,
    "synthesizer('random', 90, pattern=window(9))": CONTINUED | PLACED,
    "synthesizer('factorized', 90, 4)": PACKED | CONTINUED,
    "synthesizer('random+dot', 90, pattern=causal)": PACKED | PLACED,
    "synthesizer('factorized', 90, 12, pattern=causal)": {'plain': None, 'row positions padding lse key bias': None},
    "synthesizer('random', 19)": {'plain': 'synthesizer has no support for 20 positions, only for up to 19'},
}
DISTRIBUTION_CELLS = dict.fromkeys(
    ('grouped segments bias', 'offset dropout function bias', 'row positions padding key bias'), None
) | {'lse': 'has no log-sum-exp'}
DISTRIBUTIONS = ('sparsemax(causal)', 'entmax(window(9))', 'hard(full)', 'hard(full, sampled=True)', 'local_p(4)')
MECHANISM_CELLS |= dict.fromkeys(DISTRIBUTIONS, DISTRIBUTION_CELLS)
