"""Code shared by softmax, sparsemax, entmax and hard attention: dense weights, a memory-bounded form, and a cache."""
