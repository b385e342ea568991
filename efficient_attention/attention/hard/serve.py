"""Hard attention by dense scores, some queries at a time where all pairs are too many."""

from efficient_attention.attention.hard.definition import weights_of
from efficient_attention.attention.logits.serve import serve as serve_logits
from efficient_attention.attention.request import Request
from efficient_attention.attention.room import Result


def serve(request: Request) -> Result:
    """The output of `Hard`, with every option of a request, and the log-probabilities of draws."""
    return serve_logits(request, weights_of)
