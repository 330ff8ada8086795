"""A sampler and a loss of one's own: checked against candax's laws, then used to learn which word follows which.

Measured: 71,434 words, the mean loss of 100 steps falls from 9.6 to 7.9 in 1000 steps; 142 s on 2 busy cores (60 s of
CPU time), the checks included: python examples/own_sampler_and_loss.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx

import candax as cx
from candax.base import never, no_update


def evenly_spaced(num_sampled):
    """Classes at equal distances from a random one on: none of them twice, and each as likely as any other."""

    def sample(num_valid, key, query):
        slots, step = jnp.arange(num_sampled), jnp.maximum(num_valid // num_sampled, 1)
        ids = ((jax.random.randint(key, (), 0, num_valid) + slots * step) % num_valid)[None]
        return cx.Candidates(ids, log_expected_count(num_valid, None, ids, query), (slots < num_valid)[None])

    def log_expected_count(num_valid, candidates, ids, query):
        return jnp.where(ids < num_valid, jnp.log(jnp.minimum(num_sampled / num_valid, 1)), -jnp.inf)

    def built(*args):
        return args[-1].num_valid  # of the classes: all that this sampler must know

    facts = cx.Facts(covers_all=True, draw_independent=True, with_replacement=False)
    return cx.Sampler(built, sample, log_expected_count, no_update, built, never, facts)


def warp(logits):
    """The mean over the labels y of log(1 + sum_c max(0, 1 - o_y + o_c)), the sum estimated from the sampled c."""
    keep, true_mask = logits.sampled_mask & ~logits.hits, logits.true_mask
    counts = jax.lax.stop_gradient(jnp.where(keep, logits.sampled_log_expected_count, 0))
    weights = jnp.where(keep, jnp.exp(-jnp.maximum(counts, -20)), 0)
    true, sampled = jnp.where(true_mask, logits.true, 0), jnp.where(keep, logits.sampled, 0)
    above = jax.nn.relu(1 - true[:, :, None] + sampled[:, None, :])
    losses = jnp.log1p(jnp.einsum("bts,bs->bt", above, weights))
    return jnp.sum(jnp.where(true_mask, losses, 0), axis=1) / jnp.maximum(jnp.sum(true_mask, axis=1), 1)


class Bigrams(nnx.Module):
    def __init__(self, num_words, dim, sampler, loss, rngs):
        self.words = cx.Embed(num_words, dim, rngs=rngs)
        self.head = cx.Head(num_words, dim, sampler=sampler, loss=loss, rngs=rngs)


@nnx.jit(donate_argnums=(0, 1))
def train_step(model, optimizer, pairs):
    loss, grads = cx.value_and_grad(lambda model: model.head.loss(model.words(pairs[:, 0]), pairs[:, 1]))(model)
    optimizer.update(model, grads)
    return loss


def main(texts: tuple[str, ...] = (), steps: int = 1000, sampled: int = 1024, dim: int = 128):
    """Checks both, and trains on text files or on the source of Python's standard library."""
    cx.testing.check_loss(warp)
    cx.testing.check_sampler(evenly_spaced(6))
    words = cx.data.text_words(texts, min_count=1)
    pairs = np.lib.stride_tricks.sliding_window_view(words.ids, 2)
    model = Bigrams(words.num_words, dim, evenly_spaced(sampled), warp, nnx.Rngs(0))
    optimizer = cx.Optimizer(model, optax.adagrad(0.1))
    rng, losses = np.random.default_rng(0), []
    for step in range(steps):
        losses.append(train_step(model, optimizer, pairs[rng.integers(0, len(pairs), 1024)]))
        if step % 100 == 99:
            print(f"step {step + 1}: loss {np.mean(losses[-100:]):.3f}")
    return [float(losses[0]), float(np.mean(losses[-10:]))]


if __name__ == "__main__":
    tyro.cli(main)
