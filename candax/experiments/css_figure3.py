r"""Complementary Sum Sampling, figure 3: a GRU language model trained by seven methods from shared samples.

    candax experiment css-figure3            (on the identifiers of Python's standard library; under 10 minutes)
    candax experiment css-figure3 --text train.txt.xz --alphas .75 1 --max-length 70 --keep-one-in 1 --epochs 30 \
        --likelihood-words 20000

Setting: GRU of 128 units, word vectors of 100 shared by input and output through a projection P, parameters uniform in
+-.005, vectors in +-.1; lower case, no stop words or punctuation, words seen 4 times or more, sentences up to 70 words;
batches of 128 sentences, 250 samples from f^alpha shared by the batch and 10 spare, plain SGD, learning rate .05 times
.9^epoch (.02 where .05 diverges, and .01 where that does). Exact log-likelihood per word of the training set, every
epoch on a fixed subset of 20,000 words, at the end on everything.

Expected on WikiText-2 (1,019,069 words, 23,247 different, the second command with --epochs 5; a uniform distribution
has -10.05), exact log-likelihood of all words, alpha .75 and 1, all at rate .05:

* BlackOut -8.20 and -8.19, CSS-IS -8.22 and -8.20: the best, as in the paper.
* Standard IS -8.20 and -8.21: as good here. The paper's instability does not show: after 5 epochs no word is certain
  enough for a missing true class to matter (figure 2a shows where it does).
* IS large vocabulary -9.60 and -10.02, negative sampling -9.76 and -10.03, ranking -13.2 and -13.9: far behind, as in
  the paper. What they learn is no likelihood: ranking ends below uniform, and the likelihood falls while its loss does.

The first command takes alpha .75 alone, 5 epochs of a third of the sentences of up to 23 words, and one epoch of the
full softmax: BlackOut -6.00, CSS-IS -6.03, IS -6.04, IS large vocabulary -7.86, negative sampling -8.35, ranking -9.86
(full softmax after 1 epoch -6.39; uniform -8.83). That is the full run's order, its three best again within hundredths
of each other. (With alpha 1 ranking is still at -8.37 by then, above the other two; it falls later.) The 12 runs on
WikiText-2 took 106 minutes on 2 cores that had other work as well; about half of that is the likelihood of all words.

Where the paper is silent: the objective is the sum over a sentence, averaged over the batch. Negative sampling and
ranking take the mean over samples (equation 29; a sum over 250 diverges at these rates). "First 250 that are not the
true class" applies to BlackOut, CSS-IS and ranking; the others draw 250. The candidate state is a tanh, not the printed
sigmoid.

Source: Botev, Zheng and Barber, Complementary Sum Sampling for Likelihood Approximation in Large Scale Classification
(2017), section 6.2 and figure 3.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import candax as cx
from candax import data, losses, models, samplers
from candax.base import Loss, SampledLogits, Sampler
from candax.blocks import DEFAULT_BLOCK_SIZE
from candax.files import digest_of
from candax.recipes import common
from candax.recipes.language.measures import log_likelihood

RATES = (0.05, 0.02, 0.01)
NUM_SAMPLED, SPARE = 250, 10
_FULL = "full softmax"


@dataclasses.dataclass(frozen=True)
class Figure3(common.Settings):
    """Trains a language model by every method; prints a table, writes results.json and a picture."""

    text: tuple[Path, ...] = ()
    """Text files, plain or .gz, .bz2, .xz; none: the identifiers of Python's standard library."""
    epochs: common.Count = 5
    """Passes over the text."""
    full_epochs: common.NonNegative = 1
    """Passes over the text with the full softmax, each as long as about 20 others; 0: leave it out."""
    alphas: tuple[float, ...] = (0.75,)
    """Powers of the frequencies that samples are drawn from."""
    max_length: common.Count = 23
    """Words of the longest sentence kept."""
    keep_one_in: common.Count = 3
    """Use only every n-th sentence."""
    batch_size: common.Count = 128
    """Sentences per step."""
    likelihood_words: common.Count = 5000
    """Words whose exact log-likelihood is computed every epoch."""
    methods: tuple[str, ...] = ()
    """Methods, by their names in the table; none: all."""
    rates: tuple[common.Positive, ...] = RATES
    """Learning rates to try in turn: where training diverges, the next one."""

    QUICK: ClassVar = {"epochs": 2, "max_length": 8, "keep_one_in": 200, "batch_size": 16, "methods": ("CSS-IS",)}

    def check(self) -> None:
        """See ``Settings``; every panel is of one alpha."""
        super().check()
        self.expect(
            bool(self.alphas and self.rates), "a number after --alphas and one after --rates", "alphas", "rates"
        )
        self.expect(set(self.methods) <= set(METHODS), f"methods out of {', '.join(map(repr, METHODS))}", "methods")


def _first_samples(loss: Loss) -> Loss:
    """The loss on the first ``NUM_SAMPLED`` samples of each example that are not its labels."""

    def of_first(logits: SampledLogits) -> jax.Array:
        kept = logits.sampled_mask & ~logits.hits
        return loss(dataclasses.replace(logits, sampled_mask=kept & (jnp.cumsum(kept, axis=1) <= NUM_SAMPLED)))

    return of_first


METHODS: dict[str, tuple[Loss, int]] = {
    "CSS-IS": (functools.partial(losses.css, complement="redraw", num_kept=NUM_SAMPLED), NUM_SAMPLED + SPARE),
    "BlackOut": (_first_samples(losses.blackout), NUM_SAMPLED + SPARE),
    "IS large vocabulary": (losses.subset_softmax, NUM_SAMPLED),
    "ranking": (_first_samples(functools.partial(losses.ranking, reduction="mean")), NUM_SAMPLED + SPARE),
    "negative sampling": (functools.partial(losses.negative_sampling, reduction="mean"), NUM_SAMPLED),
    "IS": (losses.importance_sampling, NUM_SAMPLED),
}


def _corpus(settings: Figure3) -> data.Corpus:
    longest, step = settings.max_length, settings.keep_one_in
    of_files = functools.partial(data.text_corpus, settings.text) if settings.text else data.python_corpus
    corpus = of_files(max_length=longest)
    if step == 1:
        return corpus
    bounds = zip(corpus.offsets[:-1:step], corpus.offsets[1::step], strict=True)
    sentences = ([corpus.words[i] for i in corpus.ids[start : end - 1]] for start, end in bounds)  # without </s>
    return data.corpus_of(corpus.name, sentences, max_length=longest)


def _subset(corpus: data.Corpus, words: int, seed: int) -> np.ndarray:
    """Random sentences that together have about the given number of words."""
    order = np.random.default_rng(seed).permutation(len(corpus))
    return order[: 1 + int(np.searchsorted(np.cumsum(corpus.lengths[order]), words))]


COLUMNS = common.columns(
    method="", alpha="g", learning_rate="g", diverged="g", steps=",", log_likelihood=".3f", ms_per_step=".1f"
)


@common.command
def figure3(settings: Figure3) -> common.Study:
    """Runs the study; a row for each method and alpha, with the first rate at which everything stays finite."""
    corpus = _corpus(settings)
    batches = data.SentenceBatches(corpus, settings.batch_size, settings.seed)
    names = settings.methods or tuple(METHODS)
    plans: list[tuple[str, float | None]] = [(name, alpha) for alpha in settings.alphas for name in names]
    plans += [(_FULL, None)] * bool(settings.full_epochs)
    sizes = f"{len(corpus):,} sentences, {len(corpus.ids):,} words, {corpus.num_classes:,} of them different"
    return common.Study(
        f"{corpus.name}: {sizes}",
        [
            common.Method({"method": name, "alpha": alpha}, _run(settings, batches, name, alpha))
            for name, alpha in plans
        ],
        COLUMNS,
        [_panel(alpha) for alpha in settings.alphas],
        "paper: BlackOut and CSS-IS best, ranking and negative sampling far behind, IS unstable",
        "exact log-likelihood of the training text, nats per word",
        reference=_FULL,
        data=digest_of(corpus.ids, corpus.offsets),
    )


def _run(settings: Figure3, batches: data.SentenceBatches, name: str, alpha: float | None) -> common.Run:
    corpus, seed = batches.corpus, settings.seed
    subset, everything = _subset(corpus, settings.likelihood_words, seed), np.arange(len(corpus))
    epochs = settings.full_epochs if alpha is None else settings.epochs
    of = functools.partial(log_likelihood, corpus=corpus, batch_size=settings.batch_size)
    by: tuple[Any, Any] = None, functools.partial(losses.full_softmax, block_size=DEFAULT_BLOCK_SIZE)
    if alpha is not None:
        loss, number = METHODS[name]
        by = samplers.unigram(number, power=alpha), loss

    def make(rate: float, sampler: Sampler | None, loss: Any) -> tuple[models.Classifier, cx.Optimizer]:
        rngs = nnx.Rngs(seed)
        # One row more than classes: the start of a sentence, which is read and never predicted.
        words = cx.Embed(corpus.num_classes + 1, 100, rngs=rngs)
        head = cx.Head(corpus.num_classes, table=words, counts=corpus.counts, biases=False, rngs=nnx.Rngs(seed))
        head.vectors[...] = jax.random.uniform(rngs.params(), head.vectors.shape, minval=-0.1, maxval=0.1)
        head.key_data.set_value(jax.random.key_data(jax.random.key(seed)))
        head.use(sampler, loss)
        model = models.Classifier(models.GRULanguageModel(head, 128, init_scale=0.005, rngs=rngs), head)
        schedule = optax.exponential_decay(rate, batches.batches_per_epoch, 0.9, staircase=True)
        return model, cx.Optimizer(model, optax.sgd(schedule))

    def loss_fn(model: Any, batch: Any) -> jax.Array:
        return jnp.sum(model.head.loss(model(batch), batch.labels, reduction="none")) / settings.batch_size

    def attempt(rate: float) -> common.Run:
        problem = common.Training(
            functools.partial(make, rate),
            batches,
            epochs * batches.batches_per_epoch,
            measure=lambda model: {"log_likelihood": of(model, sentences=everything)},
            on_the_way=lambda model: {"log_likelihood": of(model, sentences=subset)},
            measured_at=[epoch / epochs for epoch in range(epochs + 1)],
            loss_fn=loss_fn,
        )
        return problem.by(*by, f"{name}, {rate}")

    return common.first_finite({rate: attempt(rate) for rate in settings.rates}, "learning_rate")


def _panel(alpha: float) -> common.Panel:
    lines = common.curves("epoch", "log_likelihood", where=lambda row: row["alpha"] in (None, alpha), marker="o")
    axes = {"title": f"samples from f^{alpha}", "xlabel": "epoch", "ylabel": "exact log-likelihood, nats per word"}
    return common.Panel(lines, axes)
