"""Code that softmax, sparsemax, entmax and hard attention share:
dense weights, a form that bounds memory, and a decoding cache.
"""
