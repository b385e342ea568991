"""Trained models at work: evaluation, pipelines, searches, generated text, prediction files, word replacement."""
