"""Complete models: embeddings, layer stacks and output heads; also segment memory, cached decoding, published model
sizes, sharding and FLOPs.
"""
