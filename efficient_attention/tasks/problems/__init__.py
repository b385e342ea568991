"""Kinds of fine-tuning: each turns examples into rows, and outputs into predictions, files and scores."""
