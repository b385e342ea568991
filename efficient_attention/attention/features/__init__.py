"""Code shared by mechanisms with a feature map, such as FAVOR and linear attention:
time and memory are linear in the length.
"""
