"""Official scores of predictions, one file per benchmark."""
