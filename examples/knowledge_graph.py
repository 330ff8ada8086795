"""Which entity completes a triple: DistMult with a penalty on the rows that a step looks up, in a loss of one's own.

Measured: 26,909 entities, the loss falls from 10.2 to 9.0 and the filtered MRR of held-out triples is .056 after 620
steps (four passes); 50 s on 2 busy cores: python examples/knowledge_graph.py
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx

import candax as cx
from candax.recipes.links import evaluate_links


class DistMult(nnx.Module):
    def __init__(self, graph, dim, sampled, rngs):
        start, (entities, kinds) = nnx.initializers.normal(1e-3), (graph.num_entities, 2 * graph.num_relations)
        self.entities = cx.Embed(entities, dim, embedding_init=start, rngs=rngs)
        self.relations = cx.Embed(kinds, dim, embedding_init=start, rngs=rngs)
        # Heads and tails of the batch, and others: expected counts of a mixture add up.
        sampler = cx.samplers.mixture([cx.samplers.in_batch(), cx.samplers.uniform(sampled, replacement=False)])
        options = {"counts": graph.counts, "biases": False, "rngs": rngs}
        self.head = cx.Head(entities, table=self.entities, sampler=sampler, loss=cx.losses.css, **options)

    def __call__(self, batch):
        return self.entities(batch.entities) * self.relations(batch.relations)


def loss_fn(model, batch, weight):
    answers = model.entities(batch.labels[:, 0])
    rows = [model.entities(batch.entities), model.relations(batch.relations), answers]
    # Losses see logits alone. Rows are regularised where they are looked up: these of the triples, not the candidates'.
    penalty = sum(jnp.sum(jnp.abs(used) ** 3) for used in rows) / len(answers)
    return model.head.loss(rows[0] * rows[1], batch.labels) + weight * penalty


@partial(nnx.jit, donate_argnums=(0, 1))
def train_step(model, optimizer, batch, weight):
    loss, grads = cx.value_and_grad(loss_fn)(model, batch, weight)
    optimizer.update(model, grads)
    return loss


def main(library: str | None = None, steps: int = 620, dim: int = 64, sampled: int = 512, weight: float = 0.05):
    """Learns what imports, defines and calls what in Python's standard library, or in another folder of modules."""
    graph = cx.data.python_graph(library, min_count=1 if library else 2)
    model = DistMult(graph, dim, sampled, nnx.Rngs(0))
    # Gradients of rows near 0 are tiny: optax' defaults, made for large ones, would keep them there.
    adagrad = optax.adagrad(optax.linear_schedule(0.3, 0.0, steps), initial_accumulator_value=0.0, eps=1e-20)
    optimizer, losses = cx.Optimizer(model, adagrad), []
    batches = cx.data.QuestionBatches(graph, min(512, 2 * len(graph.train)), seed=0)
    for step in range(steps):
        batch = jax.device_put(batches[divmod(step, batches.batches_per_epoch)])
        losses.append(float(train_step(model, optimizer, batch, weight)))
    asked = cx.data.questions_in_order(cx.data.questions_of(graph.test, graph.num_relations), 512)
    known = cx.data.KnownAnswers(graph)
    found = evaluate_links(jax.jit(model), model.head.classes(), asked, known, graph.num_relations)
    print(f"loss {np.mean(losses[:10]):.2f} to {np.mean(losses[-10:]):.2f}; filtered MRR {found['mrr']:.3f}")
    return losses[0], float(np.mean(losses[-10:]))


if __name__ == "__main__":
    tyro.cli(main)
