"""A linear encoder that starts from the data: what `candax train` and `candax compare` train.

Its bag is a truncated singular value decomposition of the training features, class vectors are the centroids of their
examples, biases are log priors. Sampled losses then only have to tell neighbours apart.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float32
from scipy.sparse import csr_array

import candax as cx
from candax import data, models
from candax.alike import made_once
from candax.base import Sampler
from candax.recipes.common.optimizers import row_adagrad

# So many examples tell the directions of all, in less time.
_ROWS = 100_000


def directions(dataset: data.Dataset, dim: int, seed: int) -> Float32[np.ndarray, "num_features dim"]:
    """The right singular vectors of the largest singular values; zeros where there are fewer than ``dim``.

    Of a random part of the training examples, where they are many.
    """
    from sklearn.utils.extmath import randomized_svd

    features = _normalized(dataset)
    if features.shape[0] > _ROWS:
        features = features[np.sort(np.random.default_rng(seed).permutation(features.shape[0])[:_ROWS])]
    number = min(dim, *features.shape)
    _, _, vectors = randomized_svd(features, number, n_iter=2, random_state=seed)
    return np.pad(vectors.T.astype(np.float32), ((0, 0), (0, dim - number)))


def make(
    dataset: data.Dataset,
    dim: int,
    learning_rate: float,
    num_steps: int,
    seed: int,
    sampler: Sampler | None,
    loss: Callable[..., Any],
    *,
    encoder_rate: float,
    dropout: float,
    bag: Callable[[], np.ndarray] | None,
) -> tuple[models.Classifier, cx.Optimizer]:
    """The model at its start, and Adagrad on rows, whose rate falls linearly to 0.

    Args:
        dataset: to train on.
        dim: of the embeddings.
        learning_rate: of class vectors at the start.
        num_steps: after which the rate is 0.
        seed: of candidates.
        sampler: of the head.
        loss: of the head.
        encoder_rate: the encoder's learning rate as a share of that; the encoder starts near where it should end.
        dropout: of the embedding, in training.
        bag: gives ``directions``, to start from; None for a model whose values come from a checkpoint.

    Returns:
        The model and its optimizer.
    """
    counts, rngs = dataset.label_counts(dataset.train), nnx.Rngs(seed)
    head = cx.Head(dataset.num_classes, dim, counts=counts, rngs=rngs)
    encoder = models.SparseMLP(dataset.num_features, dim, linear=True, dropout=dropout, rngs=rngs)
    if bag is not None:
        _start(encoder, head, dataset, counts, bag())
    head.use(sampler, loss)  # now, as some samplers keep tables of the vectors that there are
    model = models.Classifier(encoder, head)
    adagrad = _adagrad(encoder_rate * learning_rate, learning_rate, num_steps)
    return model, cx.Optimizer(model, adagrad, seed=seed)


@made_once
def _adagrad(encoder_rate: float, head_rate: float, num_steps: int) -> optax.GradientTransformation:
    rates = {"encoder": encoder_rate, "head": head_rate}
    return optax.multi_transform({name: row_adagrad(rate, num_steps) for name, rate in rates.items()}, _rooms)


def _rooms(params: Any) -> Any:
    """The first word of each path: encoder or head."""
    return nnx.from_flat_state([(path, path[0]) for path, _ in nnx.to_flat_state(params)])


def _start(encoder: models.SparseMLP, head: cx.Head, dataset: data.Dataset, counts: Any, bag: np.ndarray) -> None:
    encoder.bag[...] = jnp.asarray(bag)
    labels = csr_array(dataset.train.labels.T.astype(np.float32))
    centroids = (labels @ (_normalized(dataset) @ bag)) / np.maximum(counts, 1)[:, None]
    head.vectors[...] = jnp.asarray(centroids, jnp.float32)
    assert head.biases is not None
    head.biases[...] = jnp.asarray(np.log((counts + 0.5) / (len(dataset.train) + 1)), jnp.float32)


def _normalized(dataset: data.Dataset) -> csr_array:
    from sklearn.preprocessing import normalize

    return csr_array(normalize(dataset.train.features))
