"""Small things of every kind, for the calls of ``calls``."""

import contextlib
import functools
import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax.models.transformer import Block
from candax.recipes.common import finished
from candax.recipes.common.catalog import SamplerName
from candax.recipes.extreme import saving as extreme
from candax.recipes.links.building import Regulariser, link_model_of
from candax.recipes.links.command import METHODS, MethodName
from candax.recipes.retrieval.building import two_towers
from candax.recipes.sequences.building import sequence_model

_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
Good = Callable[[Path], tuple[Callable[..., Any], Mapping[str, Any]]]
NUM, DIM, BATCH = 12, 3, 2
STATE = cx.samplers.uniform(4).init(jax.random.key(0), cx.Classes(jnp.ones((NUM, DIM))))


@functools.cache
def classes() -> cx.Classes:
    return cx.Classes(jax.random.normal(jax.random.key(0), (NUM, DIM)), jnp.zeros(NUM), jnp.ones(NUM))


@functools.cache
def logits() -> cx.SampledLogits:
    found = []

    def loss(of: cx.SampledLogits) -> jax.Array:
        found.append(of)
        return cx.losses.css(of)

    with jax.disable_jit():
        _sampled_loss(loss)
    return found[0]


def _sampled_loss(loss: Any, **options: Any) -> Any:
    return cx.sampled_loss(
        embeddings(),
        labels(),
        classes(),
        sampler=cx.samplers.uniform(4),
        state=STATE,
        key=jax.random.key(1),
        loss=loss,
        **options,
    )


def embeddings() -> jax.Array:
    return jnp.ones((BATCH, DIM))


def labels() -> jax.Array:
    return jnp.array([[1], [2]])


def head() -> cx.Head:
    return cx.Head(NUM, DIM, sampler=cx.samplers.uniform(4), rngs=nnx.Rngs(0))


def optimizer(model: nnx.Module) -> cx.Optimizer:
    return cx.Optimizer(model, optax.sgd(0.1))


@functools.cache
def examples() -> cx.data.Examples:
    rng = np.random.default_rng(0)
    features = csr_array(rng.random((8, 5)).astype(np.float32))
    return cx.data.Examples(features, csr_array(rng.random((8, NUM)) < 0.3))


@functools.cache
def dataset(counted: bool = False) -> cx.data.Dataset:
    of = examples()
    if counted:
        of = cx.data.Examples(csr_array(np.ceil(of.features.toarray())), of.labels)
    return cx.data.Dataset("made", of, of)


@functools.cache
def words() -> cx.data.Words:
    return cx.data.words_of("made", [["to", "be", "or", "not"] * 5] * 60, min_count=1)


@functools.cache
def corpus() -> cx.data.Corpus:
    return cx.data.corpus_of("made", [["to", "be", "or", "not"]] * 9, min_count=1)


@functools.cache
def graph() -> cx.data.Graph:
    triples = [cx.data.Triple(f"e{i % 9}", f"r{i % 2}", f"e{(i * 5 + 1) % 9}") for i in range(40)]
    return cx.data.graph_of("made", triples)


def mean_loss(model: cx.Head, batch: Any) -> jax.Array:
    return model.loss(batch[0], batch[1])


def trained(folder: Path) -> Path:
    shutil.copytree(_trained().name, folder / "run")
    return folder / "run"


@functools.cache
def _trained() -> tempfile.TemporaryDirectory[str]:
    model, folder = head(), tempfile.TemporaryDirectory()
    batches = [(embeddings(), labels())]
    cx.training.fit(model, optimizer(model), batches, loss_fn=mean_loss, folder=folder.name, progress=False)
    return folder


def of(function: Callable[..., Any], **good: Any) -> Good:
    return lambda folder: (function, good)


def written(function: Callable[..., Any], name: str, text: str, **good: Any) -> Good:
    def make(folder: Path) -> tuple[Callable[..., Any], Mapping[str, Any]]:
        (folder / name).write_text(text)
        return function, {"path": folder / name, **good}

    return make


@functools.cache
def ivf() -> cx.Retriever:
    return cx.samplers.ivf_index(num_centers=2, hm_num=4, num_kept=4)


@functools.cache
def built() -> Any:
    return ivf().build(jax.random.key(0), classes())


def index(folder: Path) -> Path:
    cx.samplers.save_index(folder / "index", ivf(), built(), classes())
    return folder / "index"


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Of modules that of their making, which Flax hides."""
    made = isinstance(function, type) and issubclass(function, nnx.Pytree)
    return inspect.signature(function.__init__ if made else function)


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """By name; what is asked for by place only comes first, in order."""
    parameters = signature(function).parameters
    first = [arguments[name] for name in arguments if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY]
    rest = {n: v for n, v in arguments.items() if parameters[n].kind is not inspect.Parameter.POSITIONAL_ONLY}
    several = [rest.pop(name) for name in list(rest) if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL]
    if several:
        first, rest = [*first, *(rest.pop(n) for n in list(rest) if parameters[n].kind is _EITHER), *several], rest
    found = function(*first, **rest)
    if isinstance(found, contextlib.AbstractContextManager):
        with found:
            return found
    return next(found) if inspect.isgenerator(found) else found


def library(folder: Path) -> Path:
    """Some source files."""
    (folder / "lib").mkdir()
    for number in range(60):
        text = f"import json\n\ndef read_{number % 7}(path):\n    return open(path).common_{number % 3}().rest(path)\n"
        (folder / "lib" / f"module_{number}.py").write_text(text)
    return folder / "lib"


def link_head() -> cx.Head:
    return cx.Head(graph().num_entities, 4, sampler=cx.samplers.uniform(4), rngs=nnx.Rngs(0))


@functools.cache
def draw() -> cx.rows.Draw:
    return _sampled_loss(cx.losses.css, return_draw=True)[1]


@functools.cache
def method() -> cx.diagnostics.Method:
    return cx.diagnostics.Method("uniform", "css", cx.samplers.uniform, cx.losses.css)


@functools.cache
def result() -> cx.diagnostics.Diagnostics:
    return cx.diagnostics.diagnose(
        classes(), embeddings(), labels(), [method()], num_sampled=[4], num_draws=4, key=jax.random.key(0), top_k=3
    )


@functools.cache
def gradients() -> cx.Gradients:
    _, found = cx.value_and_grad(mean_loss)(head(), (embeddings(), labels()))
    return found


def encoder() -> nnx.Module:
    return cx.models.SparseMLP(5, DIM, rngs=nnx.Rngs(0))


def classifier() -> cx.models.Classifier:
    return cx.models.Classifier(encoder(), head())


def hashed() -> cx.models.Classifier:
    sampler = cx.samplers.lsh("embedding", num_tables=2, num_hashes=2, capacity=4, hash=cx.samplers.simhash())
    return cx.models.Classifier(encoder(), cx.Head(NUM, DIM, sampler=sampler, rngs=nnx.Rngs(0)))


@functools.cache
def batches() -> cx.data.Batches:
    return cx.data.Batches(examples(), 2, 0)


@functools.cache
def mesh() -> jax.sharding.Mesh:
    return cx.training.class_mesh(1)


@functools.cache
def vectors() -> cx.data.WordVectors:
    return cx.data.WordVectors(("to", "be", "or", "not"), np.eye(4, dtype=np.float32))


def text(folder: Path) -> Path:
    (folder / "text.txt").write_text("cats sit where rats sleep\n" * 9)
    return folder / "text.txt"


def repository(folder: Path) -> Path:
    (folder / "data").mkdir()
    for name in ("train", "test"):
        (folder / "data" / f"{name}.txt").write_text("2 3 2\n0 0:1.0 1:0.5\n1 2:1.0\n")
    return folder / "data"


def trained_labels(folder: Path) -> Path:
    """The file of an ``ExtremeClassifier`` of 4 features and 5 classes, untrained."""
    model = cx.models.Classifier(
        cx.models.SparseMLP(4, DIM, linear=True, rngs=nnx.Rngs(0)), cx.Head(5, DIM, rngs=nnx.Rngs(1))
    )
    options = {name: getattr(cx.recipes.ExtremeClassifier(dim=DIM), name) for name in extreme.OPTIONS}
    about = {
        "options": options, "multilabel": True, "num_features": 4, "num_classes": 5, "max_features": 4, "dim": DIM,
        "encoder": "linear", "probability": "sigmoid",
    }  # fmt: skip
    return finished.save(folder, extreme.TASK, about, finished.weights_of(model), names={}).parent


def new_recommender(
    *, dim: int, epochs: float, sampler: SamplerName, dropout: float, kind: Block
) -> cx.recipes.SequenceRecommender:
    """With options by their names, which it takes as ``**options``."""
    return cx.recipes.SequenceRecommender(dim=dim, epochs=epochs, sampler=sampler, dropout=dropout, kind=kind)


def new_link_predictor(
    *,
    method: MethodName,
    dim: int,
    epochs: float,
    sampler: SamplerName,
    regulariser: Regulariser,
) -> cx.recipes.LinkPredictor:
    """With options by their names, which it takes as ``**options``."""
    return cx.recipes.LinkPredictor(method, dim=dim, epochs=epochs, sampler=sampler, regulariser=regulariser)


def new_towers(
    *, dim: int, epochs: float, sampler: SamplerName, dropout: float, recency: float
) -> cx.recipes.TwoTowerRecommender:
    """With options by their names, which it takes as ``**options``."""
    return cx.recipes.TwoTowerRecommender(dim=dim, epochs=epochs, sampler=sampler, dropout=dropout, recency=recency)


def towers() -> cx.recipes.TwoTowerRecommender:
    """Of three items, untrained."""
    made = cx.recipes.TwoTowerRecommender(dim=4, hidden_dim=4, length=4)
    about = {"options": made.options, "data": "tiny"}
    weights, counts = finished.weights_of(two_towers(made.settings, 3)), {"counts": np.array([3, 2, 1])}
    saved = finished.Finished(Path(), "retrieve", about, weights, {"items": ["tea", "milk", "jam"]}, counts)
    return cx.recipes.TwoTowerRecommender.of(saved)


def recommender() -> cx.recipes.SequenceRecommender:
    """Of three items, untrained."""
    made = cx.recipes.SequenceRecommender(dim=4, num_heads=1, length=4)
    model = sequence_model(made.settings, 3)
    about = {"options": made.options, "data": "tiny"}
    weights, counts = finished.weights_of(model), {"counts": np.array([3, 2, 1])}
    saved = finished.Finished(Path(), "sequences", about, weights, {"items": ["tea", "milk", "jam"]}, counts)
    return cx.recipes.SequenceRecommender.of(saved)


def link_predictor() -> cx.recipes.LinkPredictor:
    """Of three entities and a relation, untrained."""
    made = cx.recipes.LinkPredictor(dim=4)
    triples = np.array([[0, 0, 1], [2, 0, 1]], np.int32)
    small = cx.data.Graph("tiny", ("cat", "animal", "dog"), ("is",), triples, triples[:0], triples[:0])
    names = {"entities": list(small.entity_names), "relations": list(small.relation_names)}
    weights = finished.weights_of(link_model_of(made.settings, METHODS["complex"], small))
    about = {"method": "complex", "options": made.settings.options, "data": "tiny"}
    saved = finished.Finished(Path(), "links", about, weights, names, {"triples": triples})
    return cx.recipes.LinkPredictor.of(saved)
