"""How fast an adaptive sampler falls behind the model: recall of the best classes against steps since a refresh."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, KeyArray, Query, State, never
from candax.blocks import streaming_evaluate
from candax.checks import check_ids, checked, described
from candax.cosines import as_scored
from candax.diagnostics.statistics import NOTHING, Measure, mean
from candax.diagnostics.top_k import top_k_share, which_count
from candax.models.head import Head
from candax.training import embed
from candax.training.feed import BatchSource
from candax.training.optimizer import Optimizer
from candax.training.trainer import head_of


@dataclasses.dataclass(frozen=True, eq=False)
class Staleness:
    """Recall against steps since a refresh; every measure has a value and a standard error for each of P times.

    Recall is the share of an example's exact ``top_k`` best classes that are candidates. Labels do not count, on either
    side; examples whose best classes are all labels are left out.

    Attributes:
        steps: since the refresh; the first is 0.
        recall: with the sampler's state in training: refreshed at step 0, then changed by its ``update`` only.
        fresh_recall: with a state refreshed at that time.
        lost: ``fresh_recall`` minus ``recall``, with the same keys: what staleness costs.
        top_k: how many best classes.
        num_examples: all in the measured batches, those that are left out included.
    """

    steps: Int[np.ndarray, " P"]
    recall: Measure
    fresh_recall: Measure
    lost: Measure
    top_k: int
    num_examples: int


@checked
def measure_staleness(
    model: nnx.Module,
    optimizer: Optimizer,
    batches: BatchSource,
    measured: Sequence[Any],
    *,
    num_steps: int,
    every: int,
    top_k: int = 10,
    key: KeyArray,
) -> Staleness:
    """Refreshes a sampler, trains on without another refresh, and measures which of the best classes it still finds.

    At step 0, then after each ``every`` steps and after the last, candidates are drawn twice for the ``measured``
    batches: with the sampler's state in training, and with a copy that is refreshed from the classes as they now are.
    All refreshes use one key, and both draws for a batch use another one: a sampler with random parameters (the hash
    functions of LSH) has the same ones in both, so that its ``lost`` recall is due to staleness and not to luck. The
    recalls themselves are those of one refresh; another ``key`` gives others.

    Standard errors are over the measured batches, which stand for all such batches and draws: the examples of one batch
    may share candidates, so they count as one observation.

    Cost, beside that of training: at each time a refresh, and for each measured batch the logits of all classes. The
    sampler's schedule is ignored. Memory: two copies of the sampler's state and one of model and optimizer.

    Args:
        model: as training left it; its head's sampler should be adaptive, as others lose nothing. It is copied.
        optimizer: of the model, copied too.
        batches: what training goes on with, from the batch of step ``optimizer.step``.
        measured: at least 2 batches, of test examples, say; candidates are drawn for batches of their size.
        num_steps: steps to train.
        every: steps between measurements.
        top_k: how many best classes.
        key: of refreshes and draws; equal keys give equal results.

    Returns:
        A ``Staleness``.

    Raises:
        ValueError: for numbers or ids out of range.
        FloatingPointError: if the loss is no longer finite.

    Example:
        >>> import numpy as np, optax
        >>> from flax import nnx
        >>> from scipy.sparse import csr_array
        >>> import candax as cx
        >>> sampler = cx.samplers.lsh(hash=cx.samplers.simhash(), num_tables=4, num_hashes=2)
        >>> head = cx.Head(9, 4, sampler=sampler, loss=cx.losses.css, rngs=nnx.Rngs(1))
        >>> model = cx.models.Classifier(cx.models.SparseMLP(9, 4, rngs=nnx.Rngs(0)), head)
        >>> eye = cx.data.Examples(csr_array(np.eye(9, dtype=np.float32)), csr_array(np.eye(9, dtype=bool)))
        >>> batches = cx.data.Batches(eye, batch_size=3, seed=0)
        >>> result = measure_staleness(
        ...     model, cx.Optimizer(model, optax.sgd(1.0)), batches, [batches[0, 0], batches[0, 1]],
        ...     num_steps=5, every=2, top_k=3, key=jax.random.key(0),
        ... )
        >>> result.steps.tolist(), float(result.lost.value[0])
        ([0, 2, 4, 5], 0.0)
    """
    from candax.training import fit  # loads orbax, which importing the diagnostics need not

    _check(head_of(model), measured, num_steps, every, top_k)
    model, optimizer = nnx.merge(*nnx.split((model, optimizer)), copy=True)
    head = head_of(model)
    assert head.sampler is not None
    assert head.state is not None
    head.sampler = sampler = head.sampler._replace(schedule=never)
    key_refresh, key_draw = jax.random.split(key)
    refresh = jax.jit(sampler.refresh)  # not donated: the old state is still needed

    def refreshed_sampler() -> State:
        return refresh(head.state.get_value(), key_refresh, head.classes())

    def measure() -> tuple[Measure, Measure, Measure]:
        classes, fresh = head.classes(), refreshed_sampler()
        stale_and_fresh = []
        for i, batch in enumerate(measured):
            embeddings = as_scored(embed(model, batch), classes.normalized)
            query = Query(embeddings, jnp.asarray(batch.labels), classes)
            key_batch = jax.random.fold_in(key_draw, i)
            stale, refreshed, counted = map(
                np.asarray, _shares(sampler.sample, top_k, head.state.get_value(), fresh, key_batch, query)
            )
            if counted.any():
                stale_and_fresh.append([stale[counted].mean(dtype=float), refreshed[counted].mean(dtype=float)])
        if len(stale_and_fresh) < 2:
            return NOTHING, NOTHING, NOTHING
        stale, refreshed = np.array(stale_and_fresh).T
        return mean(stale), mean(refreshed), mean(refreshed - stale)

    head.state.set_value(jax.tree.map(jnp.array, refreshed_sampler()))
    start, found = int(optimizer.step[...]), {0: measure()}

    def record(step: int, metrics: Any) -> None:
        found[step] = measure()

    of_steps = (batches[divmod(start + step, batches.batches_per_epoch)] for step in range(num_steps))
    fit(model, optimizer, of_steps, num_steps=num_steps, log_every=every, callback=record, progress=False)
    recall, fresh_recall, lost = (
        Measure(*map(np.array, zip(*column, strict=True))) for column in zip(*found.values(), strict=True)
    )
    num_examples = sum(len(batch.labels) for batch in measured)
    return Staleness(np.array(list(found)), recall, fresh_recall, lost, top_k, num_examples)


@partial(jax.jit, static_argnums=(0, 1))
def _shares(
    sample: Callable[[State, KeyArray, Query], Candidates],
    top_k: int,
    stale: State,
    fresh: State,
    key: KeyArray,
    query: Query,
) -> tuple[Float[Array, " B"], Float[Array, " B"], Bool[Array, " B"]]:
    """The share held by candidates from each of two states, and which examples have a best class that counts."""
    scores, top_ids, _ = streaming_evaluate(query.embeddings, query.classes, top_k)
    counts = which_count(scores, top_ids, query.labels)

    def held(state: State) -> Float[Array, " B"]:
        return top_k_share(sample(state, key, query), top_ids, counts)

    return held(stale), held(fresh), jnp.any(counts, axis=1)


def _check(head: Head, measured: Sequence[Any], num_steps: int, every: int, top_k: int) -> None:
    if head.sampler is None:
        raise ValueError("expected a head with a sampler, got one without: there is nothing to become stale.")
    if num_steps < 1 or every < 1:
        raise ValueError(f"expected num_steps and every of 1 or more, got {num_steps} and {every}.")
    if not 1 <= top_k <= head.num_classes:
        raise ValueError(f"expected top_k from 1 to {head.num_classes}, the number of classes, got {top_k}.")
    if len(measured) < 2:
        raise ValueError(f"expected 2 batches or more to measure (standard errors are over them), got {len(measured)}.")
    for i, batch in enumerate(measured):
        if not hasattr(batch, "labels"):
            raise ValueError(f"expected batches with labels to measure, got {described(batch)}.")
        check_ids(batch.labels, head.num_classes, f"labels of batch {i} of those to measure")
