"""Trained models at work: evaluation over every example once, pipelines, generation, prediction files."""
