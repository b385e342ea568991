"""How the rows of a call lie over the devices: which sides are split, into how many shares, and where each begins."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

AXIS, HEADS = 'sequence', 'tensor'  # of the mesh


@dataclasses.dataclass(frozen=True)
class Split:
    """The shares of a call's queries and keys.

    A side whose length the number of devices does not divide stays whole on each of them, and so does one that is so
    short that all devices' copies of it, such as of global tokens, are no more than a share of the other side.

    Args:
        count: devices along the axis.
        queries: of the whole rows, L.
        keys: of the whole rows, M.
        heads: devices over which heads are spread.
    """

    count: int
    queries: int
    keys: int
    heads: int = 1

    @property
    def has_query_shares(self) -> bool:
        """Whether each device has a share of the queries; else it has all of them."""
        return self.queries % self.count == 0 and self.queries * self.count**2 > self.keys

    @property
    def has_key_shares(self) -> bool:
        """Whether each device has a share of the keys; else it has all of them."""
        return self.keys % self.count == 0 and self.keys * self.count**2 > self.queries

    @property
    def query_share(self) -> int:
        """How many queries a device has."""
        return self.queries // self.count if self.has_query_shares else self.queries

    @property
    def key_share(self) -> int:
        """How many keys a device has."""
        return self.keys // self.count if self.has_key_shares else self.keys

    def device(self) -> Array:
        """The number of the device that runs the program, inside `jax.shard_map`."""
        return jax.lax.axis_index(AXIS)

    def head_device(self) -> Array:
        """Which of the devices over which heads are spread runs the program."""
        return jax.lax.axis_index(HEADS) if self.heads > 1 else jnp.int32(0)


def split_of(mesh: Mesh, queries: int, keys: int, heads: int = 1) -> Split:
    """The shares of rows with so many queries and keys on the devices of a mesh."""
    return Split(mesh.shape[AXIS], queries, keys, heads)
