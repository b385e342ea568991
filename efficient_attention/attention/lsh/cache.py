"""LSH attention has no cache.

Which earlier keys share a chunk with a query depends on the hashes of all tokens of the row, later ones too, so no
token-by-token result can equal the parallel one. `LSH.check_decoding` says so to whoever makes a `CacheSpec`.
"""

from efficient_attention.attention.no_cache import decode, init

__all__ = ['decode', 'init']
