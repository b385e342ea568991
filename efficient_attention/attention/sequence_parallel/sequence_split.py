"""Defines `SequenceSplit`, which says how queries and keys are sharded over the devices of the mesh axis `sequence`."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

AXIS, HEADS = 'sequence', 'tensor'  # names of mesh axes


@dataclasses.dataclass(frozen=True)
class SequenceSplit:
    """How the queries and keys of an attention call are divided among the devices of the mesh axis `sequence`.

    Queries or keys whose length the number of devices does not divide are not sharded. Neither are queries or keys so
    short, such as global tokens, that the copies on all devices together are at most one share of the keys or queries.

    Args:
        count: number of devices along the axis.
        queries: number of queries in the whole rows, L.
        keys: number of keys in the whole rows, M.
        heads: number of devices over which heads are sharded.
    """

    count: int
    queries: int
    keys: int
    heads: int = 1

    @property
    def has_query_shares(self) -> bool:
        """Whether the queries are sharded over the devices; otherwise each device has all queries."""
        return self.queries % self.count == 0 and self.queries * self.count**2 > self.keys

    @property
    def has_key_shares(self) -> bool:
        """Whether the keys are sharded over the devices; otherwise each device has all keys."""
        return self.keys % self.count == 0 and self.keys * self.count**2 > self.queries

    @property
    def queries_per_device(self) -> int:
        """The number of queries on each device."""
        return self.queries // self.count if self.has_query_shares else self.queries

    @property
    def keys_per_device(self) -> int:
        """The number of keys on each device."""
        return self.keys // self.count if self.has_key_shares else self.keys

    def device(self) -> Array:
        """Returns the index of this device on the mesh axis `sequence`, inside `jax.shard_map`."""
        return jax.lax.axis_index(AXIS)

    def head_device_index(self) -> Array:
        """Returns the index of this device on the mesh axis over which heads are sharded; 0 if heads are not
        sharded.
        """
        return jax.lax.axis_index(HEADS) if self.heads > 1 else jnp.int32(0)


def make_sequence_split(mesh: Mesh, queries: int, keys: int, heads: int = 1) -> SequenceSplit:
    """Returns how rows with `queries` queries and `keys` keys are divided among the devices of a mesh."""
    return SequenceSplit(mesh.shape[AXIS], queries, keys, heads)
