"""Whole models: embeddings, a stack of layers, heads; memory, decoding, named sizes, sharding, FLOPs."""
