"""Official scores of predictions, one file for each benchmark."""
