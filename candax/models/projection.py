"""Random projection: a softmax over all classes in few dimensions, and the full classifier recovered from it."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from candax.base import Classes
from candax.losses.full import full_softmax
from candax.models.classifier import Classifier
from candax.models.head import Head
from candax.rows import Constant, Table


class RandomProjection(nnx.Module):
    """An encoder whose embeddings are shortened by a fixed random matrix: ``R^T e``, R of [dim, m].

    Before a ``Head`` of dim m it is the slimmed model that random projection trains in place of the full one: any
    sampler and loss go with it, the paper's is ``full_softmax``, whose products cost m / dim of the full ones. R has
    independent normal entries of variance 1 / m, so that inner products keep their mean. Nothing is trained in it.
    ``recover`` makes the full classifier of the trained one.

    Args:
        encoder: any encoder; its tables are this one's as well. Its embeddings have ``dim`` coordinates.
        dim: of the encoder's embeddings.
        num_projected: m (the paper's 100), at most ``dim``.
        rngs: ``rngs.params`` draws R.

    Raises:
        ValueError: for numbers out of range, or an encoder with a table called "encoder" or "projection".

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> encoder = cx.models.RandomProjection(
        ...     cx.models.SparseMLP(500, 64, rngs=nnx.Rngs(0)), 64, num_projected=16, rngs=nnx.Rngs(1)
        ... )
        >>> slim = cx.models.Classifier(encoder, cx.Head(1000, 16, rngs=nnx.Rngs(2)))

    Source: Yuan, Guo, Yu, Wang, Yang, Accelerating Deep Learning with Millions of Classes (2020), as described by Zhao
        et al., ANN Softmax (PVLDB 2022), sections 2.1 and 4.
    """

    def __init__(self, encoder: Any, dim: int, num_projected: int = 100, *, rngs: nnx.Rngs) -> None:
        if not 1 <= num_projected <= dim:
            raise ValueError(
                f"expected 1 <= num_projected <= dim, the width of the encoder's embeddings, got num_projected="
                f"{num_projected} and dim={dim}. With few dimensions train the full classifier instead."
            )
        tables = {name: value for name, value in vars(encoder).items() if isinstance(value, Table)}
        if taken := tables.keys() & {"encoder", "projection"}:
            raise ValueError(f"expected an encoder without tables called {sorted(taken)}: rename them.")
        self.encoder = encoder
        self.projection = Constant(jax.random.normal(rngs.params(), (dim, num_projected)) / num_projected**0.5)
        for name, table in tables.items():
            setattr(self, name, table)

    def __call__(self, batch: Any) -> Float[Array, "B m"]:
        """The encoder's embeddings, projected."""
        return self.project(self.encoder(batch))

    def project(self, embeddings: Float[Array, "B dim"]) -> Float[Array, "B m"]:
        """``R^T e`` for every row."""
        return embeddings @ self.projection[...]


def recover(
    model: Classifier,
    batches: Iterable[Any] = (),
    *,
    weight_decay: float | None = None,
    block_size: int | None = None,
) -> Classifier:
    """The full classifier of a trained slimmed one: the same encoder, and class vectors of all its dimensions.

    **With ``weight_decay``**, by the dual solution, what the paper's "recovering" is taken to be: where the slimmed
    model minimises the mean cross-entropy plus ``weight_decay / 2 * |v|^2`` of its class vectors, these are

        v_c = sum_i (y_ic - p_ic) R^T e_i / (weight_decay * n),

    with p the model's probabilities and y the target, 1 / |Y| for each of an example's labels. The weights of the
    examples (their dual variables) are nearly those of the full problem where embeddings are of low rank, so the full
    class vectors are the same sums over the embeddings themselves:

        w_c = sum_i (y_ic - p_ic) e_i / (weight_decay * n),     so that R^T w_c = v_c.

    It takes one pass over the training examples at the price of full-softmax steps, and it is as right as the training
    was long: far from the optimum the sums are not the class vectors, in length least of all.

    **Without**, and without batches, ``w_c = R v_c``: exactly the logits of the slimmed model, ``e . R v = R^T e . v``,
    in the form of a full classifier. It is no better than the slimmed model.

    Biases are taken as they are. Of a normalised head nothing is recovered: cosines in m dimensions are others than in
    all of them.

    Args:
        model: of a ``RandomProjection`` and a head, trained.
        batches: all training examples, each once, with ``labels`` int32[B, T] padded with -1; those without labels
            count as no examples. Batches of one shape compile once.
        weight_decay: the factor of the L2 penalty that the model was trained with, per example, on the class vectors.
        block_size: of ``full_softmax``.

    Returns:
        A ``Classifier`` of the inner encoder, which is shared with the given model, and a new float32 head that scores
            all classes (``head.use`` gives it a sampler and a loss).

    Raises:
        ValueError: if the model has no random projection or a normalised head, or of ``weight_decay`` and ``batches``
            only one is given.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> import candax as cx
        >>> inner = cx.models.SparseMLP(50, 8, rngs=nnx.Rngs(0))
        >>> encoder = cx.models.RandomProjection(inner, 8, num_projected=4, rngs=nnx.Rngs(1))
        >>> slim = cx.models.Classifier(encoder, cx.Head(20, 4, rngs=nnx.Rngs(2)))
        >>> full = cx.models.recover(slim)
        >>> import numpy as np
        >>> batch = cx.data.Batch(np.zeros((4, 3), np.int32), np.ones((4, 3), np.float32), np.zeros((4, 1), np.int32))
        >>> logits = [model(batch) @ model.head.vectors[...].T for model in (slim, full)]
        >>> full.head.vectors.shape, bool(jnp.allclose(*logits, atol=1e-6))
        ((20, 8), True)

    Source: Yuan et al. (2020) as above; the recovery by dual variables: Zhang, Mahdavi, Jin, Yang, Zhu, Recovering the
        Optimal Solution by Dual Random Projection (2013).
    """
    encoder, head = model.encoder, model.head
    if not isinstance(encoder, RandomProjection):
        raise ValueError(
            f"expected a model with a RandomProjection as its encoder, got {type(encoder).__name__}: only a projected "
            "classifier has something to recover."
        )
    if head.normalized:
        raise ValueError(
            "expected a head with normalized=False: cosines of projected vectors are not those of the full ones. "
            "Train the slimmed model on plain logits, or use its encoder alone."
        )
    if weight_decay is None:
        if next(iter(batches), None) is not None:
            raise ValueError("expected weight_decay, the L2 penalty of the training, with batches; got batches alone.")
        return _classifier(encoder.encoder, head, head.vectors[...] @ encoder.projection[...].T)
    if not weight_decay > 0:
        raise ValueError(f"expected weight_decay > 0 or None, got {weight_decay!r}.")
    graph, values = nnx.split(model)

    @partial(jax.jit, donate_argnums=(1, 2))
    def add(values: Any, total: Array, number: Array, batch: Any) -> tuple[Array, Array]:
        slim = nnx.merge(graph, values)
        embeddings = Classifier(slim.encoder.encoder, slim.head)(batch)
        projected = slim.encoder.project(embeddings)
        classes, labels = slim.head.classes(), jnp.asarray(batch.labels)
        # Embeddings beside the projected ones do not change the logits if their class vectors are zero, and the
        # gradient of these is what is looked for.
        both = jnp.concatenate([projected, embeddings], axis=1)

        def loss(vectors: Array) -> Array:
            narrow = classes.vectors.astype(jnp.float32)
            wide = Classes(jnp.concatenate([narrow, vectors], axis=1), classes.biases, None, classes.num_valid)
            return jnp.sum(full_softmax(both, labels, wide, block_size=block_size))

        # The total is subtracted from zeros: the gradient is taken there.
        grad = jax.grad(loss)(jnp.zeros_like(total))
        return total - grad, number + jnp.sum((labels >= 0).any(axis=1))

    total = jnp.zeros((head.vectors.shape[0], encoder.projection.shape[0]))
    number = jnp.int32(0)
    for batch in batches:
        total, number = add(values, total, number, batch)
    if not int(number):
        raise ValueError("expected batches of labelled training examples with weight_decay, got none.")
    return _classifier(encoder.encoder, head, total / (weight_decay * number))


def _classifier(encoder: Any, head: Head, vectors: Float[Array, "rows dim"]) -> Classifier:
    """A head like the given one but for its class vectors."""
    counts = None if head.counts is None else head.counts[...][: head.num_classes]
    made = Head(head.num_classes, vectors.shape[1], biases=head.biases is not None, counts=counts, rngs=nnx.Rngs(0))
    made.vectors[...] = vectors[: head.num_classes]
    if head.biases is not None and made.biases is not None:
        made.biases[...] = head.biases[...][: head.num_classes].astype(jnp.float32)
    return Classifier(encoder, made)
