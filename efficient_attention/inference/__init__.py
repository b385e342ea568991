"""Inference with trained models: evaluation, pipelines, search, generation, prediction files and word replacement."""
