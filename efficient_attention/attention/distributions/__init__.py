"""Lists the functions from logits to attention weights by name: softmax, sparsemax, entmax and hard (one-hot).

Each is a function from logits [B, H, L, M] and allowed pairs, bool [b, h, L, M]. It returns float32 weights, zeros for
a query without keys, and a log-sum-exp [B, H, L] or None.
"""

from efficient_attention.attention.dense_attention import masked_softmax
from efficient_attention.attention.distributions.hard import hardmax
from efficient_attention.attention.distributions.threshold import entmax, sparsemax

DISTRIBUTIONS = {'softmax': masked_softmax, 'sparsemax': sparsemax, 'entmax': entmax, 'hard': hardmax}
