"""The fast form of what needs a query's logits together: dense, some queries at a time where all pairs are too many."""

import functools

from efficient_attention.attention.logits import dense
from efficient_attention.attention.logits.definition import weights_of
from efficient_attention.attention.logits.query_chunks import by_queries
from efficient_attention.attention.request import Request
from efficient_attention.attention.room import Result


def serve(request: Request, weigh: dense.Weigh = weights_of) -> Result:
    """Output and log-sum-exp, if there is one, by the weights of `weigh`, with every option of a request."""
    return by_queries(request, functools.partial(dense.serve, weigh=weigh))
