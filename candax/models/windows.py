"""Windows over runs of words: a word and its neighbours scored, or averaged, without a gather for every pair.

A *run* is L consecutive words. The neighbours of place i stand at i - w ... i - 1, i + 1 ... i + w, in this order in
the last axis of size T = 2 w. Blocks of places are multiplied with the places they can reach, and the band of the
product is what is wanted: one vector per place is read, instead of one per pair.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from candax.checks import check_positive, checked
from candax.cosines import inner_products

# Places of a block: the product is (block + 2 w) / (2 w) times as large as its band, but quick.
_BLOCK = 16


def _reach(of_places: Float[Array, "R L dim"], window: int, block: int) -> Float[Array, "R n reach dim"]:
    """For each block of places those it can reach, from ``window`` before it to ``window`` behind; zeros outside."""
    runs, length, dim = of_places.shape
    number = -(-length // block)
    behind = number * block + block - length - window
    padded = jnp.pad(of_places, ((0, 0), (window, max(behind, window)), (0, 0)))
    first = padded[:, : number * block].reshape(runs, number, block, dim)
    rest = padded[:, block : (number + 1) * block].reshape(runs, number, block, dim)
    return jnp.concatenate([first, rest[:, :, : 2 * window]], axis=2)


def _blocks(of_places: Float[Array, "R L last"], block: int) -> Float[Array, "R n block last"]:
    runs, length, last = of_places.shape
    padded = jnp.pad(of_places, ((0, 0), (0, -length % block), (0, 0)))
    return padded.reshape(runs, padded.shape[1] // block, block, last)


def _block_size(window: int) -> int:
    return max(_BLOCK, 2 * window)


@checked
def window_logits(
    embeddings: Float[Array, "R L dim"], vectors: Float[Array, "R L dim"], window: int
) -> Float[Array, "R L T"]:
    """Inner products of each place's embedding with the vectors of its neighbours: ``embeddings_i . vectors_{i + o}``.

    Args:
        embeddings: one per place.
        vectors: one per place.
        window: w, neighbours on either side.

    Returns:
        float32 logits, T = 2 w neighbours per place; 0 for neighbours outside of the run.

    Example:
        >>> import jax.numpy as jnp
        >>> run = jnp.array([[[1.0], [2.0], [3.0]]])
        >>> window_logits(run, run, 1)[0].tolist()
        [[0.0, 2.0], [2.0, 6.0], [6.0, 0.0]]
    """
    check_positive("window", window)
    runs, length, _ = embeddings.shape
    block = _block_size(window)
    band = inner_products(_blocks(embeddings, block), _reach(vectors, window, block))
    # One more column per row moves row i by i places, so that its neighbours are in the first columns.
    number, reach = band.shape[1], band.shape[3]
    flat = jnp.pad(band.reshape(runs, number, block * reach), ((0, 0), (0, 0), (0, block)))
    diagonals = flat.reshape(runs, number * block, reach + 1)[:, :length, : 2 * window + 1]
    return jnp.concatenate([diagonals[..., :window], diagonals[..., window + 1 :]], axis=-1)  # without the centre


@checked
def window_sums(
    weights: Float[Array, "R L T"], vectors: Float[Array, "R L dim"], window: int
) -> Float[Array, "R L dim"]:
    """Sums of the neighbours' vectors: ``sum_o weights_{i, o} vectors_{i + o}``.

    Args:
        weights: one per place and neighbour.
        vectors: one per place.
        window: w, neighbours on either side; T = 2 w.

    Returns:
        One sum per place.

    Example:
        >>> import jax.numpy as jnp
        >>> window_sums(jnp.ones((1, 3, 2)), jnp.array([[[1.0], [2.0], [4.0]]]), 1).ravel().tolist()
        [2.0, 5.0, 2.0]
    """
    check_positive("window", window)
    if weights.shape[2] != 2 * window:
        raise ValueError(
            f"expected weights [R, L, {2 * window}], for {window} neighbours on either side, got {list(weights.shape)}."
        )
    runs, length, dim = vectors.shape
    block = _block_size(window)
    with_centre = jnp.insert(weights, window, 0, axis=-1)
    by_block = _blocks(with_centre, block)
    number, reach = by_block.shape[1], block + 2 * window
    # The way back of ``window_logits``: rows moved by their number become the band of a matrix.
    wide = jnp.pad(by_block, ((0, 0), (0, 0), (0, 0), (0, reach + 1 - by_block.shape[3])))
    band = wide.reshape(runs, number, block * (reach + 1))[:, :, : block * reach].reshape(runs, number, block, reach)
    sums = jnp.einsum("rnbw,rnwd->rnbd", band, _reach(vectors, window, block))
    return sums.reshape(runs, number * block, dim)[:, :length]


def score_runs(
    embeddings: Float[Array, "B dim"], vectors: Float[Array, "R L dim"], biases: Float[Array, "R L"] | None, window: int
) -> Float[Array, "B T"]:
    """Logits of the neighbours of every place, with their biases."""
    true = window_logits(embeddings.reshape(vectors.shape), vectors, window)
    if biases is not None:
        true += window_logits(jnp.ones((*biases.shape, 1)), biases[..., None], window)
    return true.reshape(-1, 2 * window)
