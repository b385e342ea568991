"""Official scores of predictions, with one file per benchmark."""
