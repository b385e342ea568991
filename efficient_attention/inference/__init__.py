"""Inference with trained models: evaluation, pipelines, beam search, text generation, prediction files and replacement
of words.
"""
