"""What a training step costs on devices that need not be there, read from the program compiled for them."""
