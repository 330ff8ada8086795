"""The optimizer of a model with tables: dense for parameters, by rows for tables, under one global norm."""

import dataclasses
import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, PyTree

from candax.alike import made_once
from candax.base import Classes, Query, no_update
from candax.checks import checked, refusing, warn
from candax.cosines import wide
from candax.models.head import Head
from candax.rows.adding import Adding, can_add, finite
from candax.rows.by_rows import RowUpdate, Rowwise, rowwise
from candax.rows.differentiate import name_of
from candax.rows.draws import join
from candax.rows.elementwise import collects
from candax.rows.exact import Exact
from candax.rows.gradients import Gradients, RowGradients, fillers, map_rows
from candax.rows.rounding import Rounding
from candax.rows.slots import attach, detach
from candax.rows.tables import Placement, Slots, Table, placement_of, slots_of_tables

# The path of a variable within a model.
Path: TypeAlias = tuple[Any, ...]


class Optimizer(nnx.Pytree):
    """Takes the place of ``nnx.Optimizer``, for the gradients of ``cx.value_and_grad``.

    Parameters are updated by ``tx`` as usual. In tables, only the rows that a step has used are read and written, with
    their rows of the optimizer state (see ``cx.rows.rowwise``): others stay bit for bit as they are, their moments do
    not decay, and weight decay does not act on a row until it is used again. (``tables=cx.rows.exact_adamw(...)`` and
    the like give the result of the dense optimizer: they bring rows up to date when these are read, and keep what they
    need for that beside the table, as in ``head.vectors_slots``.) Samplers that follow the class vectors or learn from
    labels are brought up to date, by the optimizer that trains these class vectors. Where the loss, a row looked up or
    the gradients' norm is not finite, nothing at all is written, and ``skipped`` counts one step more.

    Labels and masks by path (``optax.multi_transform``, the ``mask`` of weight decay) are resolved on all parameters
    and tables together; a table has its own name there, but is a stand-in of one number. A table that modules share has
    one name, that of its first path in alphabetical order: ``head.vectors`` for a head tied to ``words.embedding``. To
    freeze a table, give it ``optax.set_to_zero()`` or leave it out of ``wrt``. A sampler of class vectors that are left
    out does not learn from labels either: so two optimizers may share a model and the gradients of a step, one of the
    body and one of the head.

    Args:
        model: to be trained.
        tx: the transformation of parameters, and of tables unless ``tables`` is given.
        tables: the transformation of tables: elementwise, such as ``optax.adagrad(0.1)`` or ``optax.adam(1e-3)``, or
            exact, such as ``cx.rows.exact_adam(1e-3)``; None: ``tx``.
        clip_norm: the largest global norm of all gradients together, each row counted once; None: no clipping.
        wrt: which variables are trained, an NNX filter.
        rounding: of new rows of bfloat16 tables: "nearest" or "stochastic", see ``cx.rows.rowwise``.
        seed: of stochastic rounding.

    Raises:
        ValueError: if the transformation of tables is not elementwise; for an exact one, if a table is not an attribute
            of a module.

    Example:
        >>> import jax.numpy as jnp, optax, candax as cx
        >>> from flax import nnx
        >>> head = cx.Head(1000, 8, sampler=cx.samplers.uniform(16), rngs=nnx.Rngs(0))
        >>> optimizer = cx.Optimizer(head, optax.adam(1e-2), clip_norm=1.0)
        >>> loss, grads = cx.value_and_grad(lambda head: head.loss(jnp.ones((4, 8)), jnp.arange(4)))(head)
        >>> optimizer.update(head, grads)
        >>> int(optimizer.step[...])
        1
    """

    @refusing(optax.MultiSteps, collects("MultiSteps"))
    @checked
    def __init__(
        self,
        model: nnx.Module,
        tx: optax.GradientTransformation,
        *,
        tables: optax.GradientTransformation | None = None,
        clip_norm: float | None = None,
        wrt: Any = nnx.Param,
        rounding: Rounding = "nearest",
        seed: int = 0,
    ) -> None:
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"expected clip_norm > 0 or None, got {clip_norm!r}.")
        self.tx, self.clip_norm, self.wrt = tx, clip_norm, wrt
        # Nothing else is drawn: steps that round to the nearest are one program for all seeds.
        self.seed = seed if rounding == "stochastic" else 0
        self.step = nnx.OptState(jnp.uint32(0))
        self.skipped = nnx.OptState(jnp.uint32(0))
        params, of_tables = self._split(model)
        self.shapes = _shapes(params, of_tables)
        if not self.shapes:
            warn(
                f"wrt={wrt!r} is true of no variable of this model, so nothing will be trained: look at the names in "
                "nnx.state(model)."
            )
        self.params_state = nnx.OptState(tx.init(_whole(params, of_tables)))
        self.by_rows = _ByRows(tx if tables is None else tables, params, of_tables, rounding)
        self.exact = isinstance(tables, Exact)
        detach(model, of_tables.values())
        states = {name_of(path): self._initial(path, table) for path, table in of_tables.items()}
        if self.exact:
            for path, table in of_tables.items():
                attach(model, table, states[name_of(path)], self.by_rows[path])
        # One variable for all tables: nnx.jit takes time for each variable in each step.
        self.table_states = nnx.OptState({} if self.exact else states)

    def _initial(self, path: Path, table: Table) -> PyTree:
        """The initial optimizer state of a table's rows, on the same devices as the rows."""
        state = self.by_rows[path].init(table[...])
        if (place := placement_of(table)) is None or not isinstance(table[...], jax.core.Tracer):
            return state
        return _placed(state, table.shape[0], place)

    def update(self, model: nnx.Module, grads: Any) -> None:
        """Updates the model, its heads' samplers and the state of this optimizer in place.

        Args:
            model: the one that was differentiated.
            grads: ``cx.Gradients``, from ``cx.value_and_grad`` or ``cx.accumulate``.

        Raises:
            ValueError: for gradients of another kind or of another model.
        """
        if not isinstance(model, nnx.Module):
            raise ValueError(f"expected update(model, gradients), in this order, got a {type(model).__name__} first.")
        params, tables = self._split(model)
        self._check_model(params, tables)
        of_params, rows = self._check(grads, model, params, tables)
        grads = Gradients(of_params, rows, grads.draws, grads.finite)
        if self._can_add(rows, tables):
            # A norm would need the sums over equal ids, whose arrays this step does without.
            norm = Gradients(of_params, {}, {}, grads.finite).norm()
            of_rows = [finite(of) for of in rows.values() if isinstance(of, RowGradients) and of.unsummed]
            ok = functools.reduce(jnp.logical_and, of_rows, grads.finite & jnp.isfinite(norm))
        else:
            norm = grads.norm()
            ok = grads.finite & jnp.isfinite(norm)
            summed = map_rows(lambda of: of.summed() if isinstance(of, RowGradients) else of, grads.rows)
            grads = dataclasses.replace(grads, rows=summed)
        if self.clip_norm is not None:
            grads = grads * jnp.where(norm > self.clip_norm, self.clip_norm / jnp.where(norm > 0, norm, 1), 1.0)

        def kept(new: Array, old: Array) -> Array:
            return jnp.where(ok, new, old)

        old_state, whole = self.params_state.get_value(), _whole(params, tables)
        updates, new_state = self.tx.update(_whole(grads.params, tables), old_state, whole)
        new = nnx.to_flat_state(jax.tree.map(kept, optax.apply_updates(whole, updates), whole))
        nnx.update(model, nnx.from_flat_state([(path, leaf) for path, leaf in new if path not in tables]))
        self.params_state.set_value(jax.tree.map(kept, new_state, old_state))

        updated = self._update_tables(model, tables, grads.rows, ok)
        trained = {path for path, _ in nnx.to_flat_state(params)} | tables.keys()
        follow(model, trained, grads, updated, ok)
        self.step[...] = self.step[...] + 1
        self.skipped[...] = self.skipped[...] + (~ok).astype(jnp.uint32)

    def _can_add(self, rows: dict[str, Any], tables: dict[Path, Table]) -> bool:
        """Whether the gradients of all tables may be added without summing equal ids first, see ``adding_sgd``."""
        named = {name_of(path): table for path, table in tables.items()}
        return (
            isinstance(self.by_rows.tx, Adding)
            and self.clip_norm is None
            and all(placement_of(table) is None for table in tables.values())
            and all(can_add(of, named[name][...]) for name, of in rows.items())
        )

    def _update_tables(
        self, model: nnx.Module, tables: dict[Path, Table], rows: dict[str, Any], ok: Bool[Array, ""]
    ) -> dict[str, RowUpdate]:
        """Writes the tables and their states; a step that is not ``ok`` writes nothing."""
        key = jax.random.fold_in(jax.random.key(self.seed), self.step[...])
        updated = {}
        slots = self._slots(model, tables)
        states = {name: of.get_value() for name, of in slots.items()} or dict(self.table_states.get_value())
        for number, (path, table) in enumerate(sorted(tables.items(), key=lambda item: name_of(item[0]))):
            name = name_of(path)
            by_rows = self.by_rows[path]
            _check_size(name, by_rows, table, states[name])
            # A table that the step has not used counts it too: schedules go on, and averages and exact rows follow.
            of_rows = rows[name] if name in rows else RowGradients.none(table[...])
            of_table = jax.random.fold_in(key, number)
            done = by_rows.update(of_rows, states[name], table[...], key=of_table, write=ok)
            if (place := placement_of(table)) is not None:
                new_table, state = _placed((done.table, done.state), table.shape[0], place)
                done = done._replace(table=new_table, state=state)
            table.set_value(done.table)
            states[name] = done.state
            if name in rows:
                updated[name] = done
        for name, of in slots.items():
            of.set_value(states[name])
        if not self.exact:
            self.table_states.set_value(states)
        return updated

    def grow(self, model: nnx.Module) -> None:
        """Gives rows that ``head.grow`` has added their optimizer state; others keep theirs. Call it on the host."""
        tables = self._split(model)[1]

        def grown(new: Array, old: Array) -> Array:
            return old if new.shape == old.shape else new.at[: old.shape[0]].set(old)

        if not self.exact:
            new = {name_of(path): self.by_rows[path].init(table[...]) for path, table in tables.items()}
            self.table_states.set_value(jax.tree.map(grown, new, self.table_states.get_value()))
        sizes = {name_of(path): table.shape[0] for path, table in tables.items()}
        for name, of_table in self._slots(model, tables).items():
            of_table.set_value(of_table.get_value().grown(sizes[name]))

    def _slots(self, model: nnx.Module, tables: dict[Path, Table]) -> dict[str, Slots]:
        """What an exact optimizer has put beside each table, by the table's name."""
        if not self.exact:
            return {}
        named = {name_of(path): table for path, table in tables.items()}
        of_tables = slots_of_tables(model)
        found = {name: of_tables[id(table)] for name, table in named.items() if id(table) in of_tables}
        if missing := sorted(named.keys() - found.keys()):
            raise ValueError(
                f"expected the model that this optimizer was made for, got one without slots beside {missing}: make "
                "the optimizer after the model is whole, and of this model."
            )
        return found

    def _split(self, model: nnx.Module) -> tuple[PyTree, dict[Path, Table]]:
        """The arrays of the trained parameters that are not tables, and the trained tables by path."""
        is_table = nnx.OfType(Table)
        params = nnx.state(model, nnx.All(self.wrt, nnx.Not(is_table)))
        tables = nnx.to_flat_state(nnx.state(model, nnx.All(self.wrt, is_table)))
        variables = dict(nnx.iter_graph(model))
        return _arrays(params), {path: variables[path] for path, _ in tables}

    def _check_model(self, params: PyTree, tables: dict[Path, Table]) -> None:
        """Raises ValueError for another model than the one that this optimizer was made for."""
        if (found := _shapes(params, tables)) != self.shapes:
            wanted, got = dict(self.shapes), dict(found)
            name = sorted(name for name in {*wanted, *got} if wanted.get(name) != got.get(name))[0]
            shapes = [f"[{', '.join(map(str, of[name]))}]" if name in of else "none" for of in (wanted, got)]
            raise ValueError(
                f"expected the model that this optimizer was made for, with {name} of shape {shapes[0]}, got one with "
                f"{shapes[1]}: make the optimizer of the model that is trained."
            )

    def _check(
        self, grads: Any, model: nnx.Module, params: PyTree, tables: dict[Path, Table]
    ) -> tuple[PyTree, dict[str, RowGradients | Array]]:
        """The gradients of what is trained; ValueError where they are of another kind or model."""
        if not isinstance(grads, Gradients) or not isinstance(grads.rows, dict):
            raise ValueError(
                f"expected candax.Gradients from candax.value_and_grad, got {type(grads).__name__}. It returns the "
                "loss and the gradients. Those of nnx.value_and_grad or jax.grad are dense: take candax.value_and_grad "
                "in its place, or train with nnx.Optimizer."
            )
        own = _arrays(nnx.filter_state(grads.params, self.wrt)) if len(grads.params) else nnx.State({})
        names = [[name_of(path) for path, _ in nnx.to_flat_state(state)] for state in (own, params)]
        known = {name_of(path) for path, _ in nnx.to_flat_state(nnx.state(model, Table))}
        if names[0] != names[1] or not known.issuperset(grads.rows):
            raise ValueError(
                "expected gradients of the model that this optimizer was made for; they are of other parameters or "
                f"tables: {names[0]} and {sorted(grads.rows)} where {names[1]} and {sorted(known)} are expected."
            )
        named = {name_of(path): table for path, table in tables.items()}
        rows = {name: entry for name, entry in grads.rows.items() if name in named}
        for name, entry in rows.items():
            number = entry.num_rows if isinstance(entry, RowGradients) else entry.shape[0]
            if number != named[name].shape[0]:
                raise ValueError(
                    f"expected gradients of the {named[name].shape[0]} rows of {name}, got those of {number} rows."
                )
        return own, rows


class _ByRows:
    """The row-sparse optimizer of each table: the whole transformation, with stand-ins for all but this table."""

    def __init__(
        self, tx: optax.GradientTransformation, params: PyTree, tables: dict[Path, Table], rounding: Rounding
    ) -> None:
        self.tx = tx
        leaves, structure = jax.tree.flatten(_whole(jax.tree.map(_stand_in, params), tables))
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        self._key = tx, rounding, tuple(tables), structure, shapes
        self._of = _each_by_rows(*self._key)

    def __getitem__(self, path: Path) -> Rowwise:
        return self._of[path]

    # Equal for optimizers made alike, so that the second one reuses what was compiled for the first.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByRows) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key[1:3])


# One object for all optimizers made alike: slots carry it, and models with equal slots share what was compiled.
_exact = functools.lru_cache(maxsize=64)(rowwise)


@made_once
def _each_by_rows(
    tx: optax.GradientTransformation,
    rounding: Rounding,
    paths: tuple[Path, ...],
    structure: Any,
    shapes: tuple[tuple[tuple[int, ...], str], ...],
) -> dict[Path, Rowwise]:
    """The same for optimizers made alike: looking at what a transformation does takes longer than all else here."""
    if isinstance(tx, Exact):
        return dict.fromkeys(paths, _exact(tx, rounding=rounding))
    whole = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*of) for of in shapes])
    return {path: rowwise(_on_leaf(tx, whole, path), rounding=rounding) for path in paths}


def _on_leaf(tx: optax.GradientTransformation, whole: PyTree, path: Path) -> optax.GradientTransformation:
    """What a transformation of many arrays does to the one at a path."""
    others = [(other, of) for other, of in nnx.to_flat_state(whole) if other != path]

    def at(leaf: Array) -> PyTree:
        # Made now: arrays are of the mesh that is set when they are made.
        flat = [*((other, _stand_in(of)) for other, of in others), (path, leaf)]
        return nnx.from_flat_state(sorted(flat, key=lambda item: tuple(map(str, item[0]))))

    def init(leaf: Array) -> PyTree:
        return tx.init(at(leaf))

    def update(grads: Array, state: PyTree, leaf: Array | None = None) -> tuple[Array, PyTree]:
        assert leaf is not None
        updates, state = tx.update(at(grads), state, at(leaf))
        return dict(nnx.to_flat_state(updates))[path], state

    return (Adding if isinstance(tx, Adding) else optax.GradientTransformation)(init, update)


def _placed(arrays: PyTree, rows: int, place: Placement) -> PyTree:
    """Arrays of ``rows`` rows are put on the devices of the table's rows; XLA might choose others for its results."""
    return jax.tree.map(lambda leaf: place.spread(leaf, 0) if leaf.shape[:1] == (rows,) else leaf, arrays)


def _check_size(name: str, by_rows: Rowwise, table: Table, state: PyTree) -> None:
    wanted = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(by_rows.init, table[...]))]
    if wanted != [jnp.shape(leaf) for leaf in jax.tree.leaves(state)]:
        raise ValueError(
            f"expected an optimizer state for the {table.shape[0]} rows of {name}, got one of another size. After "
            "head.grow(...) call optimizer.grow(model)."
        )


def follow(
    model: nnx.Module, trained: set[Path], grads: Gradients, updated: dict[str, RowUpdate], ok: Bool[Array, ""]
) -> None:
    """Brings samplers up to date with the rows that have changed and with the draws of the step.

    Those of heads whose class vectors are trained here: where several optimizers share the gradients of a step, each
    sampler must learn of it once.
    """
    names = {id(node): name_of(path) for path, node in nnx.iter_graph(model) if path in trained}
    for path, head in nnx.iter_graph(model):
        if not isinstance(head, Head) or head.sampler is None:
            continue
        vectors = _first_param(head)
        if vectors is not None and id(vectors) not in names:
            continue
        rows = updated.get(names.get(id(head.vectors), ""))
        # Where the step has not read its table it has no rows here: a head that only stands beside may be evaluated.
        if head.deterministic and (rows is not None or not isinstance(head.vectors, Table)):
            warn(
                "this model is in evaluation mode: each step draws the same candidates. Call model.train() after "
                "measuring, and before it trains."
            )
        if head.sampler.update is no_update:
            continue
        draws = grads.draws.get(name_of(path))
        if rows is None and draws is None:
            continue
        state = head.state
        assert state is not None
        classes = head.classes()
        if rows is None:
            ids, new = fillers(classes.num_classes, 1), jnp.zeros((1, classes.vectors.shape[1]))
        else:
            ids, new = rows.ids, rows.rows
        key, query = _query(head, classes, draws, ok)
        state.set_value(head.sampler.update(state.get_value(), key, query, ids, new))


def _first_param(head: Head) -> Any:
    """The table of a head's class vectors; where they are computed the first parameter of it all, None without any."""
    if isinstance(head.vectors, Table):
        return head.vectors
    return next((node for _, node in nnx.iter_graph(head) if isinstance(node, nnx.Param)), None)


def _query(head: Head, classes: Classes, draws: Any, ok: Bool[Array, ""]) -> tuple[Array, Query]:
    """The query of a head's draws; without draws, or for a step that is not ``ok``, one whose labels are all -1."""
    if draws is None:
        nothing = jnp.zeros((1, classes.vectors.shape[1])), jnp.full((1, 1), -1, jnp.int32)
        return head.step_key(), Query(*nothing, classes)
    draw = join(draws)
    return draw.key, Query(jnp.where(ok, draw.embeddings, 0), jnp.where(ok, draw.labels, -1), classes)


def _whole(params: PyTree, tables: dict[Path, Table]) -> PyTree:
    """Parameters, and for each table a stand-in: what labels by path are resolved on."""
    stand_ins = [(path, _stand_in(table[...])) for path, table in tables.items()]
    flat = [*nnx.to_flat_state(params), *stand_ins]
    return nnx.from_flat_state(sorted(flat, key=lambda item: tuple(map(str, item[0]))))


def _arrays(state: PyTree) -> PyTree:
    """A state of arrays instead of variables, which may hold Python's numbers."""
    values = jax.tree.map(lambda leaf: leaf.get_value(), state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return jax.tree.map(jnp.asarray, values)


def _shapes(params: PyTree, tables: dict[Path, Table]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The names and shapes of all that is trained; the rows of tables, which may become more, do not count."""
    of_params = [(name_of(path), leaf.shape) for path, leaf in nnx.to_flat_state(params)]
    return tuple(sorted([*of_params, *((name_of(path), ("rows", *of.shape[1:])) for path, of in tables.items())]))


def _stand_in(array: Array | jax.ShapeDtypeStruct) -> Array:
    """One zero of the same rank: checkpoints hold no arrays without elements."""
    dtype = wide(array.dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array.dtype
    with jax.ensure_compile_time_eval():
        return jnp.zeros((1,) * array.ndim, dtype)
