"""What LSH tables cost: build, query, update and whole training steps, at 10^5, 10^6 and 4 * 10^6 classes in one run.

    python benchmarks/lsh.py                (about 5 minutes on 2 cores; needs 12 GB of memory)
    python benchmarks/lsh.py --json lsh.json

Dim 128, batch 256, SimHash with 9 functions per table; class vectors are normal, so that buckets fill evenly. The step
has 4096 shared candidates (one union for the batch, an eighth of it uniform fill), Adam and row-sparse training, and
starts from the embeddings. Beside it: the same step with 4096 uniform samples, and steps that update the tables with
the rows of five steps together, or not at all.

What it should show: a query and a step take at most 1.5 times as long at 4 * 10^6 classes as at 10^5, and the same
temporary memory; building 50 tables over 10^6 vectors is a matter of seconds. Measured: 1.06 and .70 times, 5.8 s.
Updates are most of a step (about 1 microsecond for each code that changes), and waiting for several steps saves
nothing where, as here, nearly all rows of these steps differ.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from measuring import least_ms, machine, show, write
from steps import DIM, batches, compiled_library_step, median_ms

import candax as cx
from candax.allocation import with_reused_memory
from candax.diagnostics.timing import in_place
from candax.recipes import common

NUM_HASHES, BUDGET, BATCHED = 9, 4096, 5


@dataclasses.dataclass(frozen=True)
class Cost:
    """One line of the table; temporary bytes are those of the compiled call, None where nobody says."""

    what: str
    num_classes: int
    num_tables: int
    milliseconds: float
    temporary_bytes: int | None


def make_sampler(num_tables: int, update_every: int | None = 1) -> cx.Sampler:
    """The sampler of all measurements."""
    return cx.samplers.lsh(
        hash=cx.samplers.simhash(),
        num_tables=num_tables,
        num_hashes=NUM_HASHES,
        budget=BUDGET,
        fill="uniform",
        num_groups=1,
        num_buckets=2**NUM_HASHES,
        update_every=update_every,
    )


def measure_index(num_classes: int, num_tables: int, repeats: int) -> list[Cost]:
    """Build, query and update of the tables alone."""
    sampler = make_sampler(num_tables)
    classes = cx.Classes(jax.random.normal(jax.random.key(0), (num_classes, DIM)), None, None, jnp.int32(num_classes))
    state = sampler.init(jax.random.key(1), classes)
    build = jax.jit(sampler.refresh, donate_argnums=0).lower(state, jax.random.key(1), classes).compile()

    def built() -> Any:
        nonlocal state
        state = build(state, jax.random.key(1), classes)
        return state

    def cost(what: str, milliseconds: float, program: Any) -> Cost:
        return Cost(what, num_classes, num_tables, milliseconds, program.memory_analysis().temp_size_in_bytes)

    costs = [cost("build", least_ms(built, 2), build)]
    data = batches(num_classes)
    # Classes and tables are arguments: as constants of the compiled call they would be copied into it.
    query = jax.jit(
        lambda state, key, classes, batch: sampler.sample(
            state, key, cx.Query(jnp.asarray(batch.embeddings), jnp.asarray(batch.labels), classes)
        )
    )
    compiled = query.lower(state, jax.random.key(0), classes, data[0]).compile()
    milliseconds = median_ms(lambda batch: compiled(state, jax.random.key(0), classes, batch), data, repeats)
    costs.append(cost("query of 256", milliseconds, compiled))

    number = 1000
    ids = jnp.sort(jax.random.choice(jax.random.key(2), num_classes, (number,), replace=False)).astype(jnp.int32)
    rows = jax.random.normal(jax.random.key(3), (8, number, DIM))
    nothing = cx.Query(jnp.zeros((1, DIM)), jnp.zeros((1, 1), jnp.int32), classes)
    update = jax.jit(sampler.update, donate_argnums=0).lower(state, jax.random.key(0), nothing, ids, rows[0]).compile()
    moved = in_place(lambda state, rows: (update(state, jax.random.key(0), nothing, ids, rows),) * 2, state)
    return [*costs, cost(f"update of {number} rows, all anew", median_ms(moved, list(rows), repeats), update)]


def measure_step(name: str, num_classes: int, num_tables: int, sampler: cx.Sampler, repeats: int) -> Cost:
    """A training step, the mean of as many as one update of the tables may wait for."""
    step = compiled_library_step(name, num_classes, cx.losses.css, sampler)
    milliseconds = median_ms(step.run, batches(num_classes), max(1, repeats // BATCHED), BATCHED)
    return Cost(name, num_classes, num_tables, milliseconds, step.scratch)


def main(
    num_classes: tuple[int, ...] = (100_000, 1_000_000, 4_000_000),
    num_tables: int = 16,
    repeats: int = 30,
    many_tables: int = 1_000_000,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Measures and prints.

    Args:
        num_classes: sizes of the output layer.
        num_tables: L, of queries, updates and steps.
        repeats: timed calls of each.
        many_tables: classes that a build of 50 tables is timed with.
        json_file: where to write the figures; nowhere by default.
    """
    costs: list[Cost] = []
    steps: dict[str, Callable[[], cx.Sampler]] = {
        "step": lambda: make_sampler(num_tables),
        f"step, tables every {BATCHED} steps": lambda: make_sampler(num_tables, BATCHED),
        "step, tables never": lambda: make_sampler(num_tables, None),
        "step, 4096 uniform samples": lambda: cx.samplers.uniform(BUDGET),
    }
    for size in num_classes:
        costs += measure_index(size, num_tables, repeats)
        costs += [measure_step(name, size, num_tables, make(), repeats) for name, make in steps.items()]
    costs.append(measure_index(many_tables, 50, 1)[0])
    rows = [dataclasses.asdict(cost) for cost in costs]
    columns = common.columns(what="", num_classes=",", num_tables="", milliseconds=",.1f", temporary_bytes=",")
    show(machine(), columns, sorted(rows, key=lambda row: row["what"]))
    for what in ("query of 256", "step"):
        times = [cost.milliseconds for cost in costs if cost.what == what]
        print(f"{what}: {times[-1] / times[0]:.2f} times from {num_classes[0]:,} to {num_classes[-1]:,} classes")
    write(json_file, rows)


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
