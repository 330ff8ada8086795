"""Model and optimizer while they train: one compiled step on their arrays, written back before either is read."""

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PyTree

from candax.checks import described
from candax.models.head import Head, Refreshes
from candax.models.predictions import predictions
from candax.rows.accumulate import accumulate as join
from candax.rows.differentiate import value_and_grad
from candax.rows.slots import settle
from candax.rows.tables import replicate
from candax.training.feed import field, has_some, size_of
from candax.training.optimizer import Optimizer
from candax.training.refreshing import refresh
from candax.training.spreading import mesh_of, renumbered, spread
from candax.training.validation import RESERVED

LossFunction = Callable[[Any, Any], Any]
# The name under which a loss function returns the sum of its predictions' weights, by which means are weighted.
WEIGHT = "weight"


def head_of(model: nnx.Module) -> Head:
    """The head of a model: its attribute ``head``, or the only one anywhere in it.

    Raises:
        ValueError: where there is no such head.
    """
    head = getattr(model, "head", None)
    if isinstance(head, Head):
        return head
    heads = [node for _, node in nnx.iter_graph(model) if isinstance(node, Head)]
    if len(heads) != 1:
        raise ValueError(
            f"expected a model with one candax.Head, or one named head, got {len(heads)}: pass "
            "loss_fn(model, batch) -> loss to fit."
        )
    return heads[0]


def loss_of_labels(model: nnx.Module, batch: Any, *, in_parts: bool = False) -> tuple[Array, dict[str, Array]]:
    """The default loss: that of the model's head, for ``model(batch)`` and the batch's ``labels``.

    The batch may also have ``where``, ``weights`` and ``more_labels``, see ``cx.sampled_loss``. With several processes,
    each numbers in ``more_labels`` the predictions of its own part of the batch, from 0.

    A batch that is a pair is ``(inputs, labels)``, and the model is given the inputs.

    Args:
        model: with a head, see ``head_of``.
        batch: of examples.
        in_parts: whether several processes have spread the batch over a mesh, each giving its part.
    """
    inputs, labels = parts_of(batch)
    masks = {} if inputs is not batch else {name: field(batch, name) for name in ("where", "weights", "more_labels")}
    head = head_of(model)
    if not callable(model):
        raise ValueError(
            f"expected a model that is called with the inputs, got a {type(model).__name__}: give it __call__, or pass "
            "loss_fn(model, batch) -> loss to fit."
        )
    h = model(inputs)
    if not hasattr(h, "shape"):
        raise ValueError(
            f"expected the model to return embeddings [..., dim], got a {type(h).__name__}: pass "
            "loss_fn(model, batch) -> loss to fit, which takes what is wanted out of it."
        )
    if in_parts and masks.get("more_labels") is not None:
        masks["more_labels"] = renumbered(model, masks["more_labels"], math.prod(h.shape[:-1]))
    flat = predictions(h, labels, num_classes=head.num_classes, num_valid=head.num_classes, **masks)
    return head.loss(h, labels, **masks), {WEIGHT: jnp.sum(flat.weights)}


def _loss_of_parts(model: nnx.Module, batch: Any) -> tuple[Array, dict[str, Array]]:
    return loss_of_labels(model, batch, in_parts=True)


def parts_of(batch: Any) -> tuple[Any, Any]:
    """What the model is given, and the labels.

    Raises:
        ValueError: for batches without labels, and labels in lists.
    """
    is_pair = isinstance(batch, tuple | list) and not hasattr(batch, "_fields") and len(batch) == 2
    inputs, labels = batch if is_pair else (batch, field(batch, "labels"))
    if labels is None:
        got, advice = described(batch), "pass loss_fn(model, batch) -> loss to fit"
        if isinstance(batch, dict):
            got = f"a dict of {sorted(map(str, batch))}"
        elif isinstance(batch, tuple | list):
            got = f"a {type(batch).__name__} of {len(batch)}"
        elif hasattr(batch, "shape"):
            advice = "a batch by itself goes into a list, [(inputs, labels)]; of arrays, " + advice
        raise ValueError(
            "expected batches with labels (a key or an attribute of that name, or pairs of inputs and labels), got "
            f"{got}: {advice}."
        )
    if isinstance(labels, tuple | list):
        raise ValueError(
            f"expected labels to be an array, got a {type(labels).__name__}: np.asarray makes an array of numbers in "
            "lists, once shorter lists are filled up with -1, and np.stack(labels, axis=-1) one of arrays."
        )
    return inputs, labels


class Graph:
    """The structure of modules, whose hash is taken once and not in each step."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._hash = hash(graph)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.graph == other.graph)


class Trainer:
    """Model and optimizer in training. Call ``synchronise`` before one of them is read, ``reload`` after a change."""

    def __init__(self, model: nnx.Module, optimizer: Optimizer, loss_fn: LossFunction, accumulate: int) -> None:
        self.model, self.optimizer = model, optimizer
        self.mesh = mesh_of(model)
        if self.mesh is not None:
            replicate(self.mesh, model, optimizer)
        _own((model, optimizer))
        self.wrote: Array | None = None
        self._in_parts = loss_fn is loss_of_labels and self.mesh is not None and jax.process_count() > 1
        self._step = compiled_step(_loss_of_parts if self._in_parts else loss_fn, accumulate)
        self._steps = (_kept_steps if _is_own(loss_fn) else _new_steps)(self._step)
        # Also those without a sampler, which a callback may give one.
        self._heads = [node for _, node in nnx.iter_graph(model) if isinstance(node, Head)]
        self.reload()

    def reload(self) -> None:
        """Takes the arrays out of model and optimizer."""
        # A teacher within the model may have a head over all classes that is evaluated.
        evaluated = [head for head in self._heads if head.deterministic]
        if evaluated and (evaluated == self._heads or any(head.sampler is not None for head in evaluated)):
            raise ValueError("expected a model in training mode, got one in evaluation mode: call model.train() on it.")
        graph, self.arrays = nnx.split((self.model, self.optimizer))
        seen: set[int] = set()
        # An array under two variables would be donated twice.
        self.arrays = jax.tree.map(lambda leaf: _copied(leaf) if _again(leaf, seen) else leaf, self.arrays)
        self._graph = Graph(graph)
        self._known = True

    def synchronise(self) -> None:
        """Writes the arrays into model and optimizer; the next step frees what was read from them before it."""
        if not self._known:
            nnx.update((self.model, self.optimizer), self.arrays)
            self._known = True

    def settle(self) -> None:
        """As ``synchronise``, with all rows up to date where an exact optimizer has left some behind."""
        self.synchronise()
        if self.optimizer.exact:
            settle(self.model, donate=True)
            self.reload()

    def step(self, batch: Any) -> tuple[Array, dict[str, Array]]:
        """One step: its loss, and what the loss function returned beside it. ``wrote`` says whether it wrote."""
        self._known = False
        self.arrays, (loss, aux, self.wrote) = self._step(self._graph, self.arrays, batch)
        return loss, aux

    def compile_steps(self, batches: Any) -> None:
        """Compiles what ``steps`` calls: as many steps as a call has are too long to be left out of the time."""
        try:
            self._steps.lower(self._graph, self.arrays, batches).compile()
        except TypeError as error:
            error.add_note("With steps_per_call above 1, a step may not change shapes and dtypes of variables.")
            raise

    def steps(self, batches: Any) -> tuple[Array, dict[str, Array]]:
        """Several steps in one call, for batches that are stacked; all that ``step`` gives has an entry for each."""
        self._known = False
        self.arrays, (loss, aux, self.wrote) = self._steps(self._graph, self.arrays, batches)
        return loss, aux

    @property
    def lost(self) -> bool:
        """Whether a step has failed after it was given the arrays, which are then gone."""
        return any(leaf.is_deleted() for leaf in jax.tree.leaves(self.arrays) if isinstance(leaf, jax.Array))

    def refreshes(self, step: int) -> bool:
        """Whether any sampler is due before this step."""
        return any(head.sampler is not None and head.sampler.schedule(step) for head in self._heads)

    def refresh(self, step: int) -> None:
        """Rebuilds the samplers that are due."""
        Refreshes.called = True  # also where no sampler is due yet
        if self.refreshes(step):
            self.synchronise()
            try:
                refresh(self.model, step, donate=True)
            finally:
                self.reload()  # where a later head fails, the earlier ones have new states

    def place(self, batch: Any) -> Any:
        """A batch on the device, or spread over the mesh: over the axes without classes or, without such, over all."""
        if self.mesh is None:
            return jax.device_put(batch)
        return spread(self.model, self.mesh, batch, renumbers=self._in_parts)


def _own(nodes: Any) -> None:
    """Copies the arrays of all variables, one after the other: the step frees them, and others may hold them too."""
    for _, variable in nnx.iter_graph(nodes):
        if isinstance(variable, nnx.Variable):
            variable.set_value(jax.tree.map(_copied, variable.get_value()))


def _copied(leaf: Any) -> Array:
    """An array of its own, of Python's numbers and NumPy's arrays too."""
    return leaf.copy() if isinstance(leaf, jax.Array) else jnp.array(leaf)


def _again(leaf: Any, seen: set[int]) -> bool:
    if id(leaf) in seen:
        return True
    seen.add(id(leaf))
    return False


def compiled_step(loss_fn: LossFunction, accumulate: int) -> Any:
    """``(graph, arrays, batch) -> (arrays, (loss, numbers, wrote))``, jitted; the arrays are donated.

    The same for equal arguments where the loss is candax's. One of the user's may read what changes between two runs,
    such as a global or an attribute, of which a program that is kept would know the first value only.
    """
    return (_kept_step if _is_own(loss_fn) else _new_step)(loss_fn, accumulate)


def _is_own(loss_fn: Any) -> bool:
    """Whether a loss is a function of this package; one of the user's that wraps such a function is none."""
    homes = []
    while isinstance(loss_fn, types.FunctionType):
        homes.append(loss_fn.__globals__.get("__name__", "").partition(".")[0])
        loss_fn = getattr(loss_fn, "__wrapped__", None)
    # In tests, jaxtyping wraps all functions.
    return loss_fn is None and homes[-1:] == ["candax"] and {"candax", "jaxtyping"}.issuperset(homes)


def _new_step(loss_fn: LossFunction, accumulate: int) -> Any:
    """See ``compiled_step``: one that is not shared."""

    def gradients(model: nnx.Module, batch: Any) -> Any:
        def objective(model: nnx.Module) -> tuple[Array, dict[str, Array]]:
            out = loss_fn(model, batch)
            return (out[0], _checked(out[1:])) if isinstance(out, tuple) else (out, {})

        return value_and_grad(objective, has_aux=True)(model)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def step(graph: Graph, arrays: PyTree, batch: Any) -> tuple[PyTree, Any]:
        model, optimizer = nnx.merge(graph.graph, arrays)
        if accumulate == 1:
            out, grads = gradients(model, batch)
        else:
            out, grads = _accumulated(gradients, model, batch, accumulate)
        before = optimizer.skipped[...]
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), (*out, optimizer.skipped[...] == before)

    return step


def _new_steps(step: Any) -> Any:
    """``(graph, arrays, batches) -> (arrays, (losses, numbers, wrote))``, jitted; the arrays are donated."""

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def steps(graph: Graph, arrays: PyTree, batches: Any) -> tuple[PyTree, Any]:
        return jax.lax.scan(functools.partial(step, graph), arrays, batches)

    return steps


_kept_step, _kept_steps = functools.lru_cache(maxsize=32)(_new_step), functools.lru_cache(maxsize=32)(_new_steps)


def _checked(aux: tuple[Any, ...]) -> dict[str, Array]:
    """Numbers by name beside a loss; ValueError for anything else."""
    found = aux[0] if len(aux) == 1 else aux
    if not isinstance(found, dict) or any(jnp.ndim(value) for value in found.values()):
        raise ValueError(
            f"expected loss_fn to return a loss, or a loss and a dict of numbers by name, got a {type(found).__name__} "
            f"beside the loss{', with arrays that are no scalars' if isinstance(found, dict) else ''}."
        )
    taken = {"loss", "examples_per_s", *RESERVED} & set(found)
    if taken:
        raise ValueError(f"expected other names than {sorted(taken)} beside the loss, which records have themselves.")
    return found


def check_divides(accumulate: int, size: int, what: str) -> None:
    """Raises ValueError for a batch that cannot be cut into equal micro-batches."""
    if size % accumulate:
        raise ValueError(
            f"expected {what} is a multiple of accumulate={accumulate}, got {size}: drop the smaller last batch "
            "(drop_remainder=True, or what your loader calls it), or give another accumulate."
        )


def _accumulated(gradients: Any, model: nnx.Module, batch: Any, number: int) -> Any:
    """Loss and gradients of a batch, computed in parts one after the other; each part counts by its weight."""
    size = size_of(batch)
    for name in ("more_labels", "feature_examples"):
        if has_some(batch, name):
            raise ValueError(
                f"expected batches without {name} with accumulate={number}, as it numbers the examples of the whole "
                "batch: make smaller batches."
            )

    def cut(path: Any, leaf: Array) -> Array:
        if leaf.ndim == 0 or not leaf.size:
            return jnp.broadcast_to(leaf, (number, *leaf.shape))
        if leaf.shape[0] != size:
            raise ValueError(
                f"expected arrays of a batch to have an entry for each of its {size} examples with "
                f"accumulate={number}, got shape {list(leaf.shape)} at batch{jax.tree_util.keystr(path)}."
            )
        return leaf.reshape(number, -1, *leaf.shape[1:])

    def one(carried: PyTree, part: Any) -> tuple[PyTree, Any]:
        copy = nnx.merge(graph, carried)
        found = gradients(copy, part)
        return nnx.state(copy), found

    graph, start = nnx.split(model)
    end, ((losses, aux), grads) = jax.lax.scan(one, start, jax.tree_util.tree_map_with_path(cut, batch))
    nnx.update(model, end)
    weights = aux.get(WEIGHT, jnp.ones(number))
    share = weights / jnp.maximum(jnp.sum(weights), 1e-30)
    loss, means = jax.tree.map(
        lambda leaf: jnp.sum(share * leaf), (losses, {name: of for name, of in aux.items() if name != WEIGHT})
    )
    return (loss, {**means, WEIGHT: jnp.sum(weights)}), join(grads, weights)
