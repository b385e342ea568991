"""What mechanisms share that weigh keys by logits: their definition, a dense form in bounded memory, their cache."""
