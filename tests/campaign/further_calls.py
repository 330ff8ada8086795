"""Training, rows, models, diagnostics, recipes and laws: further calls for ``calls``."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import candax as cx
from tests.campaign import made

_s, _m, _t, _r, _l = cx.samplers, cx.models, cx.training, cx.recipes, cx.losses
_RNGS = nnx.Rngs(0)

GOOD: Mapping[str, made.Good] = {
    "training.Validation": made.of(
        _t.Validation, batches=[1], metric=lambda model, batches: {"a": 1.0}, every=5
    ),
    "training.class_mesh": made.of(_t.class_mesh, num_devices=1),
    "training.cosines": made.of(_t.cosines, left=np.ones((2, 3), np.float32), right=np.ones((2, 3), np.float32)),
    "training.evaluate": lambda folder: (
        _t.evaluate,
        {
            "embed_fn": lambda batch: jnp.ones((2, made.DIM)), "classes": made.classes(),
            "batches": [(None, slice(0, 2))],
            "labels_csr": made.examples().labels, "label_counts": np.ones(made.NUM), "num_train": 8, "k": 2,
            "block_size": 4,
            "propensity_a": 0.5, "propensity_b": 1.5,
        },
    ),
    "training.export": lambda folder: (
        _t.export, {"folder": made.trained(folder), "out": folder / "out", "best": False}
    ),
    "training.fit": lambda folder: (
        _t.fit,
        {
            "model": (model := made.head()), "optimizer": made.optimizer(model),
            "batches": [(made.embeddings(), made.labels())],
            "num_steps": 1, "loss_fn": made.mean_loss, "accumulate": 1, "folder": folder / "run", "checkpoint_every": 1,
            "keep": 1, "log_every": 1, "skip": False, "description": "training", "progress": False,
        },
    ),
    "training.load": lambda folder: (_t.load, {"folder": made.trained(folder), "make": made.head, "best": False}),
    "training.mean_over": made.of(_t.mean_over, of_batch=lambda model, batch: {"a": 1.0}),
    "training.rank_1": made.of(
        _t.rank_1, probes=np.eye(2, 3, dtype=np.float32), mates=np.eye(2, 3, dtype=np.float32),
        distractors=np.ones((2, 3), np.float32), block_size=4,
    ),
    "training.verification": made.of(
        _t.verification, similarity=np.linspace(0, 1, 8), same=np.arange(8) % 2 == 0, num_folds=2
    ),
    "rows.adding_sgd": made.of(cx.rows.adding_sgd, rate=0.1),
    "rows.averaged": made.of(cx.rows.averaged, transformation=optax.sgd(0.1), decay=0.9),
    "rows.exact_adam": made.of(cx.rows.exact_adam, rate=0.1, b1=0.9, b2=0.999, eps=1e-8),
    "rows.exact_adamw": made.of(cx.rows.exact_adamw, rate=0.1, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.1),
    "rows.exact_momentum": made.of(cx.rows.exact_momentum, rate=0.1, momentum=0.9, nesterov=True),
    "rows.exact_rmsprop": made.of(cx.rows.exact_rmsprop, rate=0.1, decay=0.9, eps=1e-8),
    "rows.settle": lambda folder: (cx.rows.settle, {"model": made.head()}),
    "rows.gather_rows": lambda folder: (cx.rows.gather_rows, {"table": made.embeddings(), "ids": jnp.arange(2)}),
    "rows.lookup": lambda folder: (cx.rows.lookup, {"table": made.embeddings(), "ids": jnp.arange(2)}),
    "rows.rowwise": made.of(cx.rows.rowwise, transformation=optax.sgd(0.1), rounding="nearest"),
    "rows.scatter_rows": lambda folder: (
        cx.rows.scatter_rows, {"table": made.embeddings(), "ids": jnp.arange(2), "rows": made.embeddings()}
    ),
    "rows.unique_rows": lambda folder: (cx.rows.unique_rows, {"ids": jnp.arange(2), "num_rows": 4}),
    "models.CBOW": made.of(_m.CBOW, num_words=9, dim=3, rngs=_RNGS),
    "models.SkipGram": made.of(_m.SkipGram, num_words=9, dim=3, rngs=_RNGS),
    "models.SparseMLP": made.of(_m.SparseMLP, num_features=9, dim=3, rngs=_RNGS),
    "models.find_hits": lambda folder: (_m.find_hits, {"labels": made.labels(), "ids": jnp.ones((1, 4), jnp.int32)}),
    "Embed": made.of(cx.Embed, num_embeddings=9, features=3, rngs=_RNGS),
    "Head": made.of(
        cx.Head, num_classes=9, dim=3, sampler=_s.uniform(3), loss=_l.css, counts=np.ones(9), biases=True,
        normalized=False, block_size=4, num_shards=1, rngs=_RNGS,
    ),
    "Head.loss": lambda folder: (
        made.head().loss, {"h": made.embeddings(), "labels": made.labels(), "reduction": "mean"}
    ),
    "Head.top_k": lambda folder: (made.head().top_k, {"h": made.embeddings(), "k": 2}),
    "Optimizer": lambda folder: (
        cx.Optimizer,
        {"model": made.head(), "tx": optax.sgd(0.1), "clip_norm": 1.0, "rounding": "nearest", "seed": 0},
    ),
    "check": lambda folder: (cx.check, {"model": made.head(), "inputs": made.embeddings(), "labels": made.labels()}),
    "refresh": lambda folder: (cx.refresh, {"model": made.head(), "step": 0}),
    "sampled_loss": lambda folder: (
        cx.sampled_loss,
        {
            "embeddings": made.embeddings(), "labels": made.labels(), "classes": made.classes(),
            "sampler": _s.uniform(4),
            "state": made.STATE, "key": jax.random.key(0), "loss": _l.css,
        },
    ),
    "value_and_grad": made.of(cx.value_and_grad, f=made.mean_loss, argnums=0, has_aux=False),
    "accumulate": lambda folder: (cx.accumulate, {"gradients": [made.gradients()], "weights": [1.0]}),
    "training.Checkpoints": lambda folder: (
        _t.Checkpoints, {"folder": folder / "run", "identity": {"seed": 0}, "keep": 1, "name": "x", "reads": True}
    ),
    "training.averaged_model": lambda folder: (
        _t.averaged_model,
        {
            "model": (model := made.head()),
            "optimizer": cx.Optimizer(model, cx.rows.averaged(optax.sgd(0.1), 0.9)),
        },
    ),
    "training.embed": lambda folder: (_t.embed, {"model": made.classifier(), "batch": made.batches()[0, 0]}),
    "training.evaluate_dataset": lambda folder: (
        _t.evaluate_dataset,
        {
            "model": made.classifier(), "dataset": made.dataset(), "batches": made.batches(), "rows": np.arange(4),
            "batch_size": 4,
        },
    ),
    "rows.replicate": lambda folder: (cx.rows.replicate, {"mesh": made.mesh(), "nodes": made.head()}),
    "rows.shard": lambda folder: (
        cx.rows.shard, {"node": made.head(), "mesh": made.mesh(), "axis": "classes", "num_shards": 1}
    ),
    "rows.update_sampler": lambda folder: (
        cx.rows.update_sampler,
        {
            "sampler": _s.uniform(4), "state": made.STATE, "draw": made.draw(), "classes": made.classes(),
            "row_ids": jnp.arange(2), "rows": made.embeddings(),
        },
    ),
    "rows.value_and_grad": made.of(cx.rows.value_and_grad, f=made.mean_loss, has_aux=False),
    "models.Classifier": lambda folder: (_m.Classifier, {"encoder": made.encoder(), "head": made.head()}),
    "models.DenseMLP": made.of(_m.DenseMLP, num_features=9, hidden=(4,), dim=3, rngs=_RNGS),
    "models.GRULanguageModel": lambda folder: (
        _m.GRULanguageModel,
        {"head": made.head(), "hidden_dim": 4, "candidate": "tanh", "init_scale": 0.1, "rngs": _RNGS},
    ),
    "models.LSTMLanguageModel": lambda folder: (
        _m.LSTMLanguageModel,
        {"head": made.head(), "num_streams": 2, "num_layers": 1, "carry": True, "dropout": 0.1, "rngs": _RNGS},
    ),
    "models.TransformerLanguageModel": lambda folder: (
        _m.TransformerLanguageModel,
        {
            "head": made.link_head(), "context": 1, "num_blocks": 1, "num_heads": 2, "max_distance": 4, "kind": "ligr",
            "scale": 2.0, "dropout": 0.1, "attention_dropout": 0.1, "rngs": _RNGS,
        },
    ),
    "models.LinkEncoder": lambda folder: (
        _m.LinkEncoder,
        {
            "head": made.link_head(), "num_kinds": 4, "product": "complex", "scale": 2.0, "dropout": 0.1,
            "rngs": _RNGS,
        },
    ),
    "models.RandomProjection": lambda folder: (
        _m.RandomProjection, {"encoder": made.encoder(), "dim": 3, "num_projected": 2, "rngs": _RNGS}
    ),
    "models.SequenceEncoder": lambda folder: (
        _m.SequenceEncoder,
        {
            "head": made.link_head(), "num_blocks": 1, "num_heads": 2, "max_length": 4, "kind": "ligr", "scale": 2.0,
            "item_dropout": 0.1, "dropout": 0.1, "attention_dropout": 0.1, "rngs": _RNGS,
        },
    ),
    "models.TransformerBlock": made.of(
        _m.TransformerBlock, dim=4, num_heads=2, max_distance=4, kind="ligr", dropout=0.1, attention_dropout=0.1,
        rngs=_RNGS,
    ),
    "models.window_logits": made.of(
        _m.window_logits, embeddings=np.ones((2, 6, 3), np.float32), vectors=np.ones((2, 6, 3), np.float32), window=2
    ),
    "models.window_sums": made.of(
        _m.window_sums, weights=np.ones((2, 6, 4), np.float32), vectors=np.ones((2, 6, 3), np.float32), window=2
    ),
    "diagnostics.advise": made.of(
        cx.diagnostics.advise, counts=np.arange(20.0), dim=4, batch_size=4, labels_per_example=1.0, rest_ms=1.0,
        memory_bytes=1 << 30, seconds=0.01,
    ),
    "data.label_counts_of": made.written(cx.data.label_counts_of, "labels.txt", "0 2\n1 0\n", kind="labels"),
    "diagnostics.diagnose": lambda folder: (
        cx.diagnostics.diagnose,
        {
            "classes": made.classes(), "embeddings": made.embeddings(), "labels": made.labels(),
            "methods": [made.method()], "num_sampled": [4], "num_draws": 4, "key": jax.random.key(0), "top_k": 3,
            "new_index": True,
        },
    ),
    "diagnostics.draw": lambda folder: (
        cx.diagnostics.draw, {"result": made.result(), "path": folder / "picture.png"}
    ),
    "diagnostics.table": lambda folder: (cx.diagnostics.table, {"result": made.result()}),
    "diagnostics.pairs": made.of(
        cx.diagnostics.pairs, samplers={"uniform": _s.uniform}, losses={"css": cx.losses.css}
    ),
    "diagnostics.measure_staleness": lambda folder: (
        cx.diagnostics.measure_staleness,
        {
            "model": (model := made.hashed()), "optimizer": made.optimizer(model), "batches": made.batches(),
            "measured": [made.batches()[0, 0], made.batches()[0, 1]], "num_steps": 2, "every": 1, "top_k": 3,
            "key": jax.random.key(0),
        },
    ),
    "recipes.load": lambda folder: (_r.load, {"run": made.trained_labels(folder)}),
    "recipes.ExtremeClassifier.top_k": lambda folder: (
        _r.load(made.trained_labels(folder)).top_k, {"X": np.eye(2, 4), "k": 2}
    ),
    "recipes.SequenceRecommender": made.of(
        made.new_recommender, dim=8, epochs=1.0, sampler="uniform", dropout=0.1, kind="sasrec"
    ),
    "recipes.SequenceRecommender.recommend": lambda folder: (
        made.recommender().recommend, {"histories": [["tea"], ["milk", "jam"]], "k": 2, "exclude_seen": True}
    ),
    "recipes.TwoTowerRecommender": made.of(
        made.new_towers, dim=8, epochs=1.0, sampler="uniform", dropout=0.1, recency=0.5
    ),
    "recipes.TwoTowerRecommender.recommend": lambda folder: (
        made.towers().recommend, {"histories": [["tea"], ["milk", "jam"]], "k": 2, "exclude_seen": True}
    ),
    "recipes.LinkPredictor": made.of(
        made.new_link_predictor, method="complex", dim=8, epochs=1.0, sampler="uniform", regulariser="l2"
    ),
    "recipes.LinkPredictor.complete": lambda folder: (
        made.link_predictor().complete, {"head": "cat", "relation": "is", "k": 2, "exclude_known": False}
    ),
    "recipes.LinkPredictor.score": lambda folder: (
        made.link_predictor().score, {"head": "cat", "relation": "is", "tail": ["animal", "dog"]}
    ),
    "recipes.links.evaluate_links": lambda folder: (
        _r.links.evaluate_links,
        {
            "embed_fn": lambda batch: jnp.ones((4, 3)), "classes": cx.Classes(jnp.ones((made.graph().num_entities, 3))),
            "batches": cx.data.questions_in_order(made.graph().train[:4], 4),
            "known": cx.data.KnownAnswers(made.graph()), "num_relations": 2, "ks": (1, 3), "block_size": 4,
        },
    ),
    "recipes.retrieval.evaluate_retrieval": lambda folder: (
        _r.retrieval.evaluate_retrieval,
        {
            "embed_fn": lambda batch: jnp.ones((2, made.DIM)), "search": _r.retrieval.exact_search(made.classes()),
            "batches": [(None, slice(0, 2))], "labels": made.examples().labels, "ks": (1, 3),
            "exclude": made.examples().labels,
        },
    ),
    "recipes.retrieval.exact_search": lambda folder: (
        _r.retrieval.exact_search, {"classes": made.classes(), "block_size": 4}
    ),
    "recipes.retrieval.index_search": lambda folder: (
        _r.retrieval.index_search, {"index": made.ivf(), "state": made.built(), "classes": made.classes()}
    ),
    "recipes.words.train_word2vec": lambda folder: (
        _r.words.train_word2vec,
        {
            "text": made.words(), "epochs": 0.2, "direction": "cbow", "window": 2, "subsample": 0.1, "batch_size": 16,
            "seed": 0, "folder": folder / "run", "checkpoint_every": 5, "keep": 1, "progress": False,
        },
    ),
    "recipes.words.word2vec_batches": lambda folder: (
        _r.words.word2vec_batches, {"text": made.words(), "batch_size": 16, "seed": 0}
    ),
    "recipes.words.word2vec_loss": made.of(_r.words.word2vec_loss, k=5.0),
    "recipes.words.word2vec_model": lambda folder: (
        _r.words.word2vec_model,
        {
            "batches": _r.words.word2vec_batches(made.words(), batch_size=16), "num_steps": 9, "dim": 4, "k": 2.0,
            "num_sampled": 4, "power": 0.5, "learning_rate": 0.1, "seed": 0,
        },
    ),
    "recipes.words.word_analogies": made.written(
        _r.words.word_analogies, "questions.txt", ": all\nto be or not\n", vectors=made.vectors(), restrict=4
    ),
    "recipes.words.word_similarity": made.written(
        _r.words.word_similarity, "pairs.txt", "to\tbe\t1\nor\tnot\t2\nto\tnot\t3\n", vectors=made.vectors()
    ),
    "testing.check_loss": made.of(
        cx.testing.check_loss, loss=cx.losses.css, likelihood=True, unbiased_normaliser=False, sampler=_s.uniform(8),
        num_groups=1, num_valid=21, laws=["shape"], seconds=60.0,
    ),
    "testing.check_retriever": made.of(
        cx.testing.check_retriever, retriever=_s.exact_index(), k=6, recall=1.0, follows=True, cost_grows=True,
        num_valid=21, num_classes=24, laws=["found"], seconds=60.0,
    ),
    "testing.check_sampler": made.of(
        cx.testing.check_sampler, factory=_s.uniform(8), num_groups=1, delta=0.01, random=True, cautious=False,
        cost_grows=False, fills_slots=True, each_group=False, num_valid=21, num_classes=24, laws=["ids"],
        seconds=60.0,
    ),
}  # fmt: skip
