"""A user's own file."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import candax as cx

sampler: cx.Sampler = cx.samplers.log_uniform(64, ids_ranked=True)
head = cx.Head(1000, 8, sampler=sampler, loss=cx.losses.sampled_softmax, rngs=nnx.Rngs(0))
optimizer = cx.Optimizer(head, optax.adam(1e-2), tables=optax.adagrad(0.1), clip_norm=1.0)


def loss_fn(head: cx.Head) -> jax.Array:
    loss: jax.Array = head.loss(jnp.ones((4, 8)), jnp.arange(4))
    return loss


loss, grads = cx.value_and_grad(loss_fn)(head)
optimizer.update(head, grads)
scores, ids = head.top_k(jnp.ones((2, 8)), 3)
run: cx.training.Fitted = cx.training.fit(head, optimizer, [(jnp.ones((4, 8)), jnp.arange(4))], num_epochs=2)
print(run.step, scores.shape, ids.shape, cx.testing.check_loss)
