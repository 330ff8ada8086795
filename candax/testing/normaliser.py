"""The law of a loss and a sampler together: they estimate the softmax normaliser without bias."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from candax.testing.bench import Bench
from candax.testing.problems import logits_of, make_query
from candax.testing.statistics import check_mean

if TYPE_CHECKING:
    from candax.testing.loss_bench import LossBench


def check_normaliser(on: "LossBench") -> None:
    """E[exp(loss + mean true logit)] is the softmax normaliser over the labels and the support [B, num_classes]."""
    bench = Bench(on.sampler, on.case, on.clock)
    sampler, classes = bench.sampler, bench.classes
    query = make_query(jax.random.key(3), classes)
    fixed = sampler.init(jax.random.key(4), classes)
    biases = classes.biases
    assert biases is not None
    labels = query.labels
    everything = biases + query.embeddings @ classes.vectors.T
    of_labels = jnp.where(labels >= 0, jnp.take_along_axis(everything, jnp.maximum(labels, 0), 1), 0)
    true_mean = jnp.sum(of_labels, 1) / jnp.sum(labels >= 0, 1)

    def normaliser(key: jax.Array) -> jax.Array:
        key_init, key_sample = jax.random.split(key)
        state = fixed if sampler.facts.law_over == "draw" else sampler.init(key_init, classes)
        candidates = sampler.sample(state, key_sample, query)
        by_group = jnp.maximum(labels.reshape(bench.groups, -1), 0)
        counts = sampler.log_expected_count(state, candidates, by_group, query).reshape(labels.shape)
        layer = (query.embeddings, classes.vectors, biases)
        logits = logits_of(layer, labels, candidates, counts, int(classes.num_valid))
        return jnp.exp(on.loss(logits) + true_mean)

    support = np.asarray(on.case.support(classes, query, bench.groups))
    support = np.repeat(support, len(labels) // bench.groups, axis=0)
    is_label = np.any(np.asarray(labels)[:, :, None] == np.arange(classes.num_classes), axis=1)
    terms = np.where(support | is_label, np.exp(np.asarray(everything, np.float64)), 0.0)
    check_mean(
        normaliser,
        terms.sum(axis=1),
        delta=on.case.delta,
        seed=21,
        clock=on.clock,
        large=sampler.facts.law_over != "draw",
        name_of=lambda index: f"the normaliser of example {index[0]}",
    )
