"""Problems of fine-tuning (`examples.problem`): examples to rows, outputs to predictions, files and scores."""
