"""Local-p by dense scores, some queries at a time where all pairs are too many."""

from efficient_attention.attention.local_p.definition import weights_of
from efficient_attention.attention.logits.serve import serve as serve_logits
from efficient_attention.attention.request import Request
from efficient_attention.attention.room import Result


def serve(request: Request) -> Result:
    """The output of `LocalP`, with every option of a request; there is no log-sum-exp."""
    return serve_logits(request, weights_of)
