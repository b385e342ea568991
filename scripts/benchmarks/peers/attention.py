"""Measures the attention of a PyTorch library at one sequence length, forward and forward + backward.

This program runs in the environment of `make peers`; `scripts/benchmark.py` starts it with the shape as one JSON
object. It prints one JSON object. Only attention is measured: the projections of a module are replaced by stand-ins, so
the library and this project start from queries, keys and values. Other learned parts, such as Linformer's matrices,
stay and get gradients, as in this project.
"""

import json
import resource
import sys
import time
from collections.abc import Callable

import torch
import transformers

# Such a function maps query, key and value, each [1, L, H, K], to an output whose shape depends on the library.
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def sdpa(shape: dict) -> Call:
    """Returns a function that runs PyTorch's fused full attention."""
    del shape
    return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    )


def sdpa_causal(shape: dict) -> Call:
    """Returns a function that runs PyTorch's fused causal attention."""
    del shape
    return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    )


class FixedProjection(torch.nn.Module):
    """A replacement of a linear projection; it ignores its input and returns an array that the caller has set."""

    x: torch.Tensor

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the array that the caller has set, [1, L, H x K], or [L, 1, H x K] if the input has this layout."""
        return self.x if hidden.shape[0] == 1 else self.x.transpose(0, 1)


def replace_projections(module: torch.nn.Module, **arrays: torch.Tensor) -> torch.Tensor:
    """Makes a module use given queries, keys and values instead of its projections.

    Args:
        module: the module with the projections.
        arrays: arrays [1, L, H, K] by the names of the projections that they replace.

    Returns:
        Hidden states of the shape that the module expects; their values have no effect.
    """
    for name, x in arrays.items():
        if not isinstance(getattr(module, name), FixedProjection):
            setattr(module, name, FixedProjection())
        getattr(module, name).x = x.flatten(2)
    return next(iter(arrays.values())).flatten(2)


class FixedFusedProjection(torch.nn.Module):
    """Replaces a joint projection to queries, keys and values, whose result the module splits with `chunk`."""

    parts: tuple[torch.Tensor, ...]

    def forward(self, hidden: torch.Tensor) -> 'FixedFusedProjection':
        """Returns this object itself, because the module then calls `chunk` on it to split it into queries, keys and
        values.
        """
        del hidden
        return self

    def chunk(self, count: int, dim: int) -> tuple[torch.Tensor, ...]:
        """Returns the queries, keys and values that the caller has set, each [1, L, H x K]."""
        assert (count, dim) == (len(self.parts), -1)
        return self.parts


def drop_parameter_gradients(module: torch.nn.Module) -> torch.nn.Module:
    """Makes a module free each parameter's gradient as soon as it is computed, and returns the module."""
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, 'grad', None))
    return module


def hf_longformer(shape: dict) -> Call:
    """Returns a function that runs Hugging Face's Longformer attention with a sliding window of 2 x 64 + 1 keys."""
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = transformers.LongformerConfig(
        hidden_size=shape['heads'] * shape['head_width'],
        num_attention_heads=shape['heads'],
        attention_window=[128],
        attention_probs_dropout_prob=0.0,
    )
    module = LongformerSelfAttention(config, layer_id=0)
    length = shape['length']
    mask, off = torch.zeros(1, length), torch.zeros(1, length, dtype=torch.bool)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # The query is cloned, because the module divides the query in place.
        hidden = replace_projections(module, query=q.clone(), key=k, value=v)
        return module(hidden, attention_mask=mask, is_index_masked=off, is_index_global_attn=off, is_global_attn=False)[
            0
        ]

    return call


def hf_bigbird(shape: dict) -> Call:
    """Returns a function that runs Hugging Face's BigBird attention: blocks of 64, 3 random blocks per query block."""
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = transformers.BigBirdConfig(
        hidden_size=shape['heads'] * shape['head_width'],
        num_attention_heads=shape['heads'],
        block_size=64,
        num_random_blocks=3,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=shape['length'],
    )
    module = BigBirdBlockSparseAttention(config, seed=0)
    module.max_seqlen = shape['length']
    masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, shape['length']), 64)
    blocked, band, from_mask, to_mask = masks

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return module(replace_projections(module, query=q, key=k, value=v), band, from_mask, to_mask, blocked, blocked)[
            0
        ]

    return call


def hf_reformer(shape: dict) -> Call:
    """Returns a function that runs Hugging Face's Reformer LSH attention, with chunks of 64 and 4 hash rounds."""
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = transformers.ReformerConfig(
        hidden_size=shape['heads'] * shape['head_width'],
        num_attention_heads=shape['heads'],
        attention_head_size=shape['head_width'],
        lsh_attn_chunk_length=64,
        num_hashes=4,
        num_buckets=None,
        lsh_attention_probs_dropout_prob=0.0,
        max_position_embeddings=shape['length'],
        attn_layers=['lsh'],
    )
    module = LSHSelfAttention(config)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        del k  # this module computes its keys from the queries
        return module(replace_projections(module, query_key=q, value=v), num_hashes=4).hidden_states

    return call


def reformer_pytorch(shape: dict) -> Call:
    """Returns a function that runs reformer-pytorch: LSH attention with buckets of 64 and 4 hash rounds."""
    del shape
    from reformer_pytorch import LSHAttention

    module = LSHAttention(bucket_size=64, n_hashes=4, causal=False)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        del k
        return module(q[0].transpose(0, 1), v[0].transpose(0, 1))[0]

    return call


def performer_pytorch(shape: dict) -> Call:
    """Returns a function that runs performer-pytorch: FAVOR+ attention with 256 features."""
    from performer_pytorch import FastAttention

    module = FastAttention(dim_heads=shape['head_width'], nb_features=256, causal=False)
    return lambda q, k, v: module(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def performer_pytorch_causal(shape: dict) -> Call:
    """Returns a function that runs performer-pytorch: causal FAVOR+, computed in PyTorch instead of a CUDA kernel."""
    from performer_pytorch import FastAttention
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda

    module = FastAttention(dim_heads=shape['head_width'], nb_features=256, causal=True)
    module.causal_linear_fn = causal_linear_attention_noncuda
    return lambda q, k, v: module(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def local_attention(shape: dict) -> Call:
    """Returns a function that runs local-attention: a query reads its own block of 64 and both neighbouring blocks."""
    from local_attention import LocalAttention

    module = LocalAttention(
        dim=shape['head_width'], window_size=64, causal=False, look_backward=1, look_forward=1, use_rotary_pos_emb=False
    )
    return lambda q, k, v: module(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def linformer_call(shape: dict, *, tied: bool) -> Call:
    """Returns a function that runs linformer: attention with 256 compressed keys.

    If `tied`, keys and values are compressed by one matrix.
    """
    from linformer import LinformerSelfAttention

    width = shape['heads'] * shape['head_width']
    module = LinformerSelfAttention(width, shape['length'], k=256, heads=shape['heads'])
    module.to_out = torch.nn.Identity()
    if tied:  # the library's option `share_kv` would also use the keys as the values
        module.proj_v = module.proj_k
    drop_parameter_gradients(module)
    return lambda q, k, v: module(replace_projections(module, to_q=q, to_k=k, to_v=v))


def linformer_package(shape: dict) -> Call:
    """Returns a function that runs linformer with separate matrices for keys and values, shared by all heads."""
    return linformer_call(shape, tied=False)


def linformer_package_tied(shape: dict) -> Call:
    """Returns a function that runs linformer in which one matrix compresses keys and values."""
    return linformer_call(shape, tied=True)


def nystrom_call(shape: dict, **choices: bool | int) -> Call:
    """Returns a function that runs nystrom-attention, with 64 landmarks and 6 iterations for the pseudo-inverse."""
    from nystrom_attention import NystromAttention

    heads, width = shape['heads'], shape['head_width']
    module = NystromAttention(heads * width, width, heads, num_landmarks=64, pinv_iterations=6, **choices)
    module.to_qkv, module.to_out = FixedFusedProjection(), torch.nn.Identity()
    drop_parameter_gradients(module)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        module.to_qkv.parts = (q.flatten(2), k.flatten(2), v.flatten(2))
        return module(q.flatten(2))

    return call


def nystrom_attention(shape: dict) -> Call:
    """Returns a function that runs nystrom-attention without its convolution of values."""
    return nystrom_call(shape, residual=False)


def nystrom_attention_convolution(shape: dict) -> Call:
    """Returns a function that runs nystrom-attention with its default convolution of values over 33 positions."""
    return nystrom_call(shape, residual=True)


def sinkhorn_call(shape: dict, kind: str, **choices: bool | float) -> Call:
    """Returns a function that runs sinkhorn-transformer: its causal or its bidirectional attention in blocks of 64.

    The library's learned matrix sorts by sums of queries and keys, ours only by sums of keys. The library samples noise
    in every call.
    """
    from sinkhorn_transformer import sinkhorn_transformer as package

    heads, width = shape['heads'], shape['head_width']
    sizes = {'dim': heads * width, 'dim_heads': width, 'heads': heads, 'max_seq_len': shape['length']}
    module = getattr(package, kind)(**({'bucket_size': 64, 'use_simple_sort_net': True} | sizes | choices))
    drop_parameter_gradients(module)
    return lambda q, k, v: module(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def sinkhorn_transformer(shape: dict) -> Call:
    """Returns a function that runs sinkhorn-transformer: a query reads its own block and a sorted block.

    The library's code also uses the sorted keys as the sorted values.
    """
    return sinkhorn_call(shape, 'SinkhornAttention', non_permutative=False, sinkhorn_iter=8)


def sinkhorn_transformer_cut(shape: dict) -> Call:
    """Returns a function that runs sinkhorn-transformer in which all queries read the first two sorted blocks.

    Query blocks are larger than key blocks, because with equal sizes the library would add a query's own block.
    """
    choices = {'n_sortcut': 2, 'bucket_size': 128, 'kv_bucket_size': 64}
    return sinkhorn_call(shape, 'SinkhornAttention', non_permutative=False, sinkhorn_iter=8, **choices)


def sinkhorn_transformer_causal(shape: dict) -> Call:
    """Returns a function that runs sinkhorn-transformer: a query reads its own block and one earlier block.

    The earlier block is the block with the largest weight, and is multiplied by this weight.
    """
    return sinkhorn_call(shape, 'SinkhornCausalAttention', n_top_buckets=1)


def routing_call(shape: dict, *, causal: bool = False, local_heads: int = 0) -> Call:
    """Returns a function that runs routing-transformer: attention within 64 clusters of 64 tokens.

    The first `local_heads` heads use the window of `local_attention` instead. With gradients, the library updates its
    centroids as this project does. The library always computes its auxiliary loss, but no gradient is taken of that
    loss. Unlike this project, the library does not normalise queries and keys inside a cluster.
    """
    from routing_transformer import KmeansAttention

    routed = KmeansAttention(64, 64, shape['heads'] - local_heads, shape['head_width'], causal=causal)
    drop_parameter_gradients(routed)
    windows = local_attention(shape)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        routed.train(torch.is_grad_enabled())
        out = routed(*(x[:, :, local_heads:].transpose(1, 2) for x in (q, k, v)))[0]
        if not local_heads:
            return out
        return torch.cat([windows(*(x[:, :, :local_heads] for x in (q, k, v))), out], dim=1)

    return call


def routing_transformer(shape: dict) -> Call:
    """Returns a function that runs routing-transformer in which all heads attend within clusters."""
    return routing_call(shape)


def routing_transformer_causal(shape: dict) -> Call:
    """Returns a function that runs routing-transformer in causal form; each cluster also has one learned key."""
    return routing_call(shape, causal=True)


def routing_transformer_half(shape: dict) -> Call:
    """Returns a function that runs routing-transformer with four window heads; other heads attend within clusters."""
    return routing_call(shape, local_heads=4)


PEERS = {
    function.__name__: function
    for function in (
        sdpa,
        sdpa_causal,
        hf_longformer,
        hf_bigbird,
        hf_reformer,
        reformer_pytorch,
        performer_pytorch,
        performer_pytorch_causal,
        local_attention,
        linformer_package,
        linformer_package_tied,
        nystrom_attention,
        nystrom_attention_convolution,
        sinkhorn_transformer,
        sinkhorn_transformer_cut,
        sinkhorn_transformer_causal,
        routing_transformer,
        routing_transformer_causal,
        routing_transformer_half,
    )
}


def measure(shape: dict) -> dict:
    """Measures one library's attention: seconds per call after a warm-up, and peak resident memory above the inputs."""
    torch.manual_seed(0)
    call = PEERS[shape['peer']](shape)
    size = (1, shape['length'], shape['heads'], shape['head_width'])
    q, k, v = (torch.randn(size, requires_grad=True) for _ in range(3))
    baseline = peak_bytes()
    cotangent: torch.Tensor | None = None

    def forward() -> None:
        with torch.no_grad():
            call(q, k, v)

    def forward_backward() -> None:
        nonlocal cotangent
        out = call(q, k, v)
        cotangent = torch.randn_like(out) if cotangent is None else cotangent
        out.backward(cotangent)
        q.grad = k.grad = v.grad = None

    result = {'name': f'{shape["peer"]}, torch {torch.__version__}, transformers {transformers.__version__}'}
    for name, function in (('forward', forward), ('forward_backward', forward_backward)):
        result[name] = time_calls(function, shape['steps'])
    return result | {'peak_bytes': peak_bytes() - baseline}


def time_calls(call: Callable[[], None], steps: int) -> list[float]:
    """Calls a function repeatedly; returns the seconds of each call, except a first untimed call."""
    call()
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def peak_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))
