"""Complete models: embeddings, layer stacks and heads; memory, decoding, named sizes, sharding, FLOPs."""
