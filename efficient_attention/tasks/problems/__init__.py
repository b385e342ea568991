"""What fine-tuning can be about (`examples.problem`): examples to rows, outputs to predictions, files and scores."""
