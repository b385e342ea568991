"""Corpora for masked language models: documents on disk as sentences of ids, and masked or noised rows of them."""
