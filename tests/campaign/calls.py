"""A call of every public function with arguments that are right: see ``types``. Samplers, losses and data here."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

import candax as cx
from tests.campaign import further_calls, made, references

_s, _l, _d = cx.samplers, cx.losses, cx.data
_OF_LOGITS = {name: getattr(_l, name) for name in _l.__all__}
_IVF = {"num_centers": 2, "hm_num": 4, "num_kept": 4, "query_bits": 4, "num_iterations": 2, "points_per_center": 4}
_LSH = {"num_tables": 2, "num_hashes": 2, "capacity": 4, "num_buckets": 4, "hash": _s.simhash()}
_FOREST = {"num_trees": 2, "leaf_size": 4, "scale": 1.0}

# What a factory that asks for these alone is called with, unless a line below says more.
_SIZES = {"num_sampled": 4, "k": 4}


def _by_sizes(room: Any, prefix: str) -> dict[str, made.Good]:
    found = {}
    for name in room.__all__:
        asked = inspect.signature(getattr(room, name)).parameters.values()
        needed = [parameter.name for parameter in asked if parameter.default is parameter.empty]
        if set(needed) <= set(_SIZES):
            found[f"{prefix}.{name}"] = made.of(getattr(room, name), **{size: _SIZES[size] for size in needed})
    return found


GOOD: Mapping[str, made.Good] = {
    **_by_sizes(_s, "samplers"),
    "samplers.bernoulli": made.of(_s.bernoulli, expected=4.0, power=0.5, smoothing=1.0, num_slots=8, num_groups=1),
    "samplers.classes_per_example": made.of(_s.classes_per_example, num_sampled=4, batch_size=2, num_groups=1),
    "samplers.buckets": made.of(
        _s.buckets, retriever=_s.exact_index(), k=2, num_directions=2, num_groups=1, schedule=lambda step: False
    ),
    "samplers.dwta": made.of(_s.dwta, bin_size=4, sparse=False),
    "samplers.every": made.of(_s.every, sampler=_s.uniform(3), schedule=5),
    "samplers.exact_index": made.of(_s.exact_index, block_size=4),
    "samplers.exponential_schedule": made.of(_s.exponential_schedule, first=5, growth=1.5),
    "samplers.forest_index": made.of(_s.forest_index, **_FOREST),
    "samplers.grouped": made.of(_s.grouped, sampler=_s.top_k(4), num_sampled=4, num_groups=1),
    "samplers.hashing_forest": made.of(_s.hashing_forest, k=4, **_FOREST, schedule=10),
    "samplers.in_batch": made.of(_s.in_batch, num_groups=1),
    "samplers.ivf_bq": made.of(_s.ivf_bq, k=4, **_IVF),
    "samplers.ivf_index": made.of(_s.ivf_index, **_IVF),
    "samplers.kernel": made.of(
        _s.kernel, num_sampled=4, features="positive", alpha=1.0, rank=2, num_features=8, leaf_size=4, scale=1.0,
        schedule=10, num_groups=1,
    ),
    "samplers.knn_label": made.of(_s.knn_label, k=4, num_groups=1, from_graph=True, block_size=4),
    "samplers.label_index": made.of(_s.label_index, num_neighbours=4, from_graph=True, block_size=4),
    "samplers.learned_clusters": made.of(
        _s.learned_clusters, num_sampled=4, num_clusters=2, power=0.5, smoothing=1.0, static_share=0.1,
        learning_rate=0.1, num_groups=1,
    ),
    "samplers.learned_unigram": made.of(
        _s.learned_unigram, num_sampled=4, memory=8, decay=0.9, uniform_share=0.1, num_groups=1
    ),
    "samplers.load_index": lambda folder: (_s.load_index, {"path": made.index(folder), "retriever": made.ivf()}),
    "samplers.log_uniform": made.of(_s.log_uniform, num_sampled=4, ids_ranked=True, num_groups=1, replacement=True),
    "samplers.lsh": made.of(_s.lsh, query="embedding", **_LSH, budget=8, fill="uniform", num_fill=2),
    "samplers.lsh_index": made.of(_s.lsh_index, query="embedding", **_LSH),
    "samplers.lsh_top_k": made.of(_s.lsh_top_k, k=4, query="embedding", **_LSH),
    "samplers.midx": made.of(
        _s.midx, num_sampled=4, num_codewords=2, codes="product", power=0.5, smoothing=1.0, scale=1.0, schedule=10,
        num_groups=1, num_iterations=2, points_per_codeword=4,
    ),
    "samplers.mixture": made.of(_s.mixture, parts=[_s.uniform(2), _s.log_uniform(2)]),
    "samplers.partial_fc": made.of(_s.partial_fc, num_sampled=4, num_groups=1),
    "samplers.resampled": made.of(_s.resampled, sampler=_s.uniform(8), num_kept=4, scale=1.0),
    "samplers.retrieved": made.of(_s.retrieved, retriever=_s.exact_index(), k=4, schedule=lambda step: False),
    "samplers.save_index": lambda folder: (
        _s.save_index,
        {
            "path": folder / "index",
            "retriever": made.ivf(),
            "state": made.built(),
            "classes": made.classes(),
            "with_classes": True,
        },
    ),
    "samplers.sharded": made.of(_s.sharded, sampler=_s.uniform(4), num_shards=2),
    "samplers.top_k": made.of(_s.top_k, k=4, block_size=4),
    "samplers.uniform": made.of(_s.uniform, num_sampled=4, num_groups=1, replacement=True),
    "samplers.unigram": made.of(_s.unigram, num_sampled=4, power=0.5, smoothing=1.0, num_groups=1, replacement=True),
    "samplers.with_tail": made.of(_s.with_tail, head=_s.top_k(4), tail=_s.uniform(4)),
    **{
        f"losses.{name}": lambda folder, loss=loss: (loss, {"logits": made.logits()})
        for name, loss in _OF_LOGITS.items()
        if next(iter(inspect.signature(loss).parameters)) == "logits"
    },
    "losses.arcface, numbers": lambda folder: (_l.arcface, {"logits": made.logits(), "margin": 0.5, "scale": 64.0}),
    "losses.cosface, numbers": lambda folder: (_l.cosface, {"logits": made.logits(), "margin": 0.4, "scale": 64.0}),
    "losses.d_softmax, numbers": lambda folder: (
        _l.d_softmax, {"logits": made.logits(), "end_point": 0.9, "scale": 32.0, "corrected": False}
    ),
    "losses.d_softmax_b, numbers": lambda folder: (
        _l.d_softmax_b, {"logits": made.logits(), "share": 0.1, "end_point": 0.9, "scale": 32.0, "corrected": False}
    ),
    "losses.gbce, numbers": lambda folder: (_l.gbce, {"logits": made.logits(), "calibration": 0.5}),
    "losses.css, numbers": lambda folder: (_l.css, {"logits": made.logits(), "complement": "drop"}),
    "losses.nce, numbers": lambda folder: (
        _l.nce, {"logits": made.logits(), "log_normalizer": 0.5, "remove_hits": True}
    ),
    "losses.negative_sampling, numbers": lambda folder: (
        _l.negative_sampling, {"logits": made.logits(), "reduction": "sum", "sample_weight": 1.0, "remove_hits": True}
    ),
    "losses.ranking, numbers": lambda folder: (
        _l.ranking, {"logits": made.logits(), "margin": 1.0, "penalty": "hinge", "reduction": "sum"}
    ),
    "losses.each_label": made.of(_l.each_label, loss=_l.css),
    "losses.full_softmax": lambda folder: (
        _l.full_softmax, {"embeddings": made.embeddings(), "labels": made.labels(), "classes": made.classes(),
        "block_size": 4}
    ),
    "losses.over_all_classes": made.of(_l.over_all_classes, loss=_l.one_vs_all, num_classes=made.NUM),
    "losses.with_margin": made.of(_l.with_margin, margin=_l.cosface, loss=_l.css),
    "losses.with_smoothing": made.of(_l.with_smoothing, loss=_l.css, smoothing=0.1),
    "data.Batches": lambda folder: (
        _d.Batches, {"examples": made.examples(), "batch_size": 2, "seed": 0, "max_features": 3, "max_labels": 2}
    ),
    "data.Dataset": lambda folder: (_d.Dataset, {"name": "made", "train": made.examples(), "test": made.examples()}),
    "data.Examples": lambda folder: (
        _d.Examples, {"features": made.examples().features, "labels": made.examples().labels}
    ),
    "data.Identities": made.of(
        _d.Identities, num_features=8, manifold_dim=2, nuisance_dim=2, nuisance=1.0, noise=0.1, seed=0
    ),
    "data.IdentityBatches": lambda folder: (
        _d.IdentityBatches,
        {"identities": _d.Identities(), "num_classes": 9, "samples_per_class": 2, "batch_size": 2, "seed": 0},
    ),
    "data.KnownAnswers": lambda folder: (_d.KnownAnswers, {"graph": made.graph()}),
    "data.QuestionBatches": lambda folder: (_d.QuestionBatches, {"graph": made.graph(), "batch_size": 4, "seed": 0}),
    "data.SentenceBatches": lambda folder: (_d.SentenceBatches, {"corpus": made.corpus(), "batch_size": 2, "seed": 0}),
    "data.WindowBatches": lambda folder: (
        _d.WindowBatches,
        {
            "text": made.words(), "batch_size": 16, "seed": 0, "direction": "cbow", "window": 2, "subsample": 0.1,
            "run_length": 16, "shard_size": 100,
        },
    ),
    "data.WordVectors": made.of(_d.WordVectors, words=("to", "be"), vectors=np.ones((2, 3), np.float32)),
    "data.corpus_of": made.of(_d.corpus_of, name="made", sentences=[["to", "be"]] * 9, min_count=1, max_length=9),
    "data.evaluation_batches": lambda folder: (
        _d.evaluation_batches, {"examples": made.examples(), "batch_size": 2, "max_features": 3, "max_labels": 2}
    ),
    "data.flatten_labels": lambda folder: (
        _d.flatten_labels, {"dataset": made.dataset(), "max_count": 9, "min_count": 1, "seed": 0}
    ),
    "data.graph": made.written(
        _d.graph, "triples.tsv", references.TRIPLES, valid_share=0.1, test_share=0.1, unknown="drop"
    ),
    "data.graph_of": made.of(
        _d.graph_of, name="made", triples=[_d.Triple(f"e{i % 9}", "r", f"e{i % 5}") for i in range(40)],
        valid_share=0.1, test_share=0.1,
    ),
    "data.interactions_of": made.of(
        _d.interactions_of, name="made", rows=[_d.Row("u", f"i{i}", float(i)) for i in range(9)], min_count=1
    ),
    "data.prefetch": made.of(_d.prefetch, iterable=[1, 2], size=1),
    "data.questions_in_order": lambda folder: (
        _d.questions_in_order, {"questions": made.graph().train, "batch_size": 2}
    ),
    "data.questions_of": lambda folder: (_d.questions_of, {"triples": made.graph().train, "num_relations": 2}),
    "data.sentence_batch": lambda folder: (
        _d.sentence_batch, {"corpus": made.corpus(), "sentences": np.arange(2)}
    ),
    "data.sentences_in_order": lambda folder: (
        _d.sentences_in_order, {"corpus": made.corpus(), "sentences": np.arange(4), "batch_size": 2}
    ),
    "data.tf_idf": lambda folder: (_d.tf_idf, {"dataset": made.dataset(counted=True)}),
    "data.words_of": made.of(_d.words_of, name="made", sentences=[["to", "be"]] * 9, min_count=1, max_words=99),
    "data.distance_from_uniform": made.of(_d.distance_from_uniform, counts=np.ones(4)),
    "data.load": lambda folder: (_d.load, {"name_or_folder": made.repository(folder)}),
    "data.xml_repository": lambda folder: (_d.xml_repository, {"folder": made.repository(folder)}),
    "data.python_stdlib": lambda folder: (_d.python_stdlib, {"stdlib": made.library(folder)}),
    **{
        f"data.{read.__name__}": lambda folder, read=read: (read, {"stdlib": made.library(folder), "min_count": 1})
        for read in (_d.python_corpus, _d.python_graph, _d.python_interactions)
    },
    "data.text_corpus": lambda folder: (
        _d.text_corpus, {"paths": [made.text(folder)], "min_count": 1, "max_length": 60, "name": "made"}
    ),
    "data.text_words": lambda folder: (
        _d.text_words, {"paths": [made.text(folder)], "min_count": 1, "keep_case": True}
    ),
    **further_calls.GOOD,
}  # fmt: skip
# Public names that are no functions to call with arguments of one's own, and why.
EXEMPT: Mapping[str, str] = {
    **dict.fromkeys(
        ("Candidates", "Classes", "Facts", "Gradients", "Query", "Retriever", "SampledLogits", "Sampler"),
        "a value or an interface: whoever takes one looks at it",
    ),
    **dict.fromkeys(
        (
            "data.Answers", "data.Batch", "data.CBOWBatch", "data.Corpus", "data.FlatBatch", "data.Graph",
            "data.IdentityBatch", "data.Interactions", "data.Pairs", "data.QuestionBatch", "data.Row",
            "data.SentenceBatch", "data.SkipGramBatch", "data.Triple", "data.Words",
            "data.LabelCounts", "diagnostics.Advice", "diagnostics.Option", "diagnostics.Diagnostics",
            "diagnostics.Measure", "diagnostics.Method", "diagnostics.Staleness", "recipes.words.Analogies",
            "recipes.words.Similarity", "recipes.words.Trained", "rows.Draw", "rows.Lagging", "rows.RowGradients",
            "rows.RowUpdate",
            "rows.Table", "rows.TableView", "rows.UniqueRows", "rows.Constant", "rows.Rowwise", "testing.LawBroken",
            "training.Fitted", "training.Interrupted", "training.Loaded", "training.Verification",
            "training.BatchSource", "recipes.retrieval.Search", "models.TextPart",
        ),
        "a value that functions return, an error, or an interface",
    ),
    "recipes.ExtremeClassifier": "scikit-learn wants that arguments are looked at by fit",
    **dict.fromkeys(
        ("recipes.words.word2vec_step_loss", "samplers.simhash", "training.connect"), "takes no argument, or any"
    ),
}  # fmt: skip
# Arguments that are not looked at before they are used.
ANYTHING: Mapping[str, tuple[str, ...]] = {
    "data.prefetch": ("iterable",),
    "training.Validation": ("batches",),
    "training.fit": ("batches",),
    "check": ("inputs", "labels"),
    "rows.update_sampler": ("state",),
    "training.embed": ("batch",),
    "recipes.ExtremeClassifier.top_k": ("X",),
}
# The whole library, and all laws, which is right.
TOO_LONG = {("stdlib", "None"), ("paths", "an empty array"), ("laws", "None")}
MAY_BE_NEGATIVE = {
    ("losses.nce, numbers", "log_normalizer"), ("Optimizer", "seed"), ("recipes.words.word2vec_model", "seed"),
    ("value_and_grad", "argnums"),
}  # fmt: skip
ANY_RANK = {
    "rows.gather_rows", "rows.lookup", "rows.scatter_rows", "rows.unique_rows", "Head.top_k",
}  # fmt: skip
