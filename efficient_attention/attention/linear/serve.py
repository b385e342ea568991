"""Linear attention in time and memory linear in the length, by the sums over features that FAVOR takes too."""

from jax import Array

from efficient_attention.attention.favor.serve import serve_features
from efficient_attention.attention.linear.definition import ELU, Linear
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.request import Request


def serve(request: Request) -> tuple[Array, None]:
    """`Linear`, causal or not, with segments, cross attention and grouped heads."""
    return serve_features(request, ELU, of_kind(Linear, request.mechanism).chunk)
