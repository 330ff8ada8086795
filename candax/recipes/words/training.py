"""Word vectors from a text: what word2vec does, with any sampler and any loss.

On 99 novels (11.4 million words, 5 epochs, dim 100, three seeds) the mean score on WordSim, MEN and SimLex is .449
(gensim's: .452), and per second of wall time on an idle machine it trains, with one thread of XLA (see ``threads``), on
2.2 to 3.4 times as many words as gensim with two, 2.6 times at the median: ``benchmarks/word2vec.py``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

import candax as cx
from candax import losses, samplers
from candax.alike import made_once
from candax.base import Loss, SampledLogits, Sampler
from candax.checks import check_positive, checked
from candax.data import Words, WordVectors
from candax.data.windows import Direction, SkipGramBatch, WindowBatches
from candax.models import CBOW, Classifier, SkipGram
from candax.rows import adding_sgd
from candax.training import fit

# gensim lowers the learning rate to this share of what it starts with, from .025 to .0001; word2vec.c to 1e-4 of it.
_LAST_RATE = 0.004
# How many times one word may stand in a batch.
_MOST_OFTEN = 16
# Places that share candidates. A step adds up the changes that all of them ask of a candidate: with 128 places WordSim
# is .02 lower, and training diverges at a learning rate of .04.
_SHARING = 32
# On a core of an AMD EPYC a step takes 1.1 ms, and 1.6 where each is a call, which is Python's part. Short runs do
# without: their last steps, fewer than a call has, would need a second program.
_STEPS_PER_CALL, _LONG = 40, 2000


class Trained(NamedTuple):
    """Word vectors, and the run that they come from.

    Attributes:
        vectors: of the words as inputs: those to use.
        outputs: of the words as classes.
        model: after training.
        steps: of the run.
        records: the log of ``fit``.
        seconds: of training.
    """

    vectors: WordVectors
    outputs: WordVectors
    model: Classifier
    steps: int
    records: list[dict[str, Any]]
    seconds: float


@checked
@made_once
def word2vec_loss(k: float) -> Loss:
    """Negative sampling as in word2vec: each pair of words against ``k`` draws, whatever the size of the shared set.

    ``sum_y [-log sigmoid(o_y) - k mean_s log sigmoid(-o_s)]`` over the labels y of an example. Draws that are labels
    stay in the sum (word2vec leaves out those that equal the label): the optimum with unigram noise is PMI - log k.

    Args:
        k: draws per pair.

    Returns:
        A loss.
    """
    if not k > 0:
        raise ValueError(f"expected k > 0, got {k}.")

    def loss(logits: SampledLogits) -> Float[Array, " B"]:
        return losses.negative_sampling(logits, reduction="mean", sample_weight=k, remove_hits=False)

    return losses.each_label(loss)


@checked
def word2vec_batches(text: Words, *, batch_size: int | None = None, seed: int = 0, **options: Any) -> WindowBatches:
    """Batches for ``train_word2vec``: ``WindowBatches`` with runs, and sizes that fit short texts too.

    Args:
        text: see ``Words``.
        batch_size: places per batch; None: 1024, or less where an epoch would have fewer than 64 batches, or where one
            word would stand in a batch more than 16 times: SGD adds up what all its places ask for, and with too many
            the loss grows without bound.
        seed: of the batches.
        options: of ``WindowBatches``.

    Returns:
        The batches.

    Raises:
        ValueError: as ``WindowBatches``.
    """
    if batch_size is not None:
        options.setdefault("run_length", _run_length(batch_size))
        return WindowBatches(text, batch_size, seed, **options)
    size = 1024
    while size > 16 and len(text.ids) < 64 * size:
        size //= 2
    while True:
        try:
            batches = WindowBatches(text, size, seed, **{"run_length": _run_length(size), **options})
        except ValueError:
            if size <= 16:
                raise
        else:
            kept = text.counts * batches.keep_probability
            if size <= 16 or size * kept.max() <= _MOST_OFTEN * kept.sum():
                return batches
        size //= 2


def _run_length(batch_size: int) -> int:
    """The longest of a few lengths with which a batch has at least 4 runs; else the batch is one run."""
    return next(
        (length for length in (256, 128, 64) if batch_size % length == 0 and batch_size >= 4 * length), batch_size
    )


@checked
def word2vec_model(
    batches: WindowBatches,
    num_steps: int,
    *,
    dim: int = 100,
    k: float = 5,
    num_sampled: int = 32,
    power: float = 0.75,
    sampler: Sampler | None = None,
    loss: Callable[..., Float[Array, " B"]] | None = None,
    optimizer: Callable[[optax.Schedule], optax.GradientTransformation] | None = None,
    learning_rate: float = 0.035,
    seed: int = 0,
) -> tuple[Classifier, cx.Optimizer]:
    """The model of word2vec for such batches, and its optimizer; ``word2vec_step_loss`` is the loss of a step.

    Args:
        batches: see ``word2vec_batches``.
        num_steps: over which the learning rate falls linearly to 0.4 % of what it was.
        dim: coordinates of a vector.
        k: draws per pair of words, if ``loss`` is None.
        num_sampled: classes that 32 places share as candidates, if ``sampler`` is None.
        power: of the frequencies that these are drawn by.
        sampler: any other; None: unigram with a set for every 32 places.
        loss: any other, on examples with several labels (``losses.each_label`` counts each); None: ``word2vec_loss``.
        optimizer: a function from a schedule of learning rates to an elementwise optax transformation; None: SGD whose
            rate is that of a single pair, as in word2vec. (A step's gradients are means over the places of a batch.)
        learning_rate: at the start.
        seed: of the initial vectors and the draws.

    Returns:
        Model and optimizer, for ``candax.training.fit``.

    Raises:
        ValueError: for numbers out of range.
    """
    check_positive("num_steps", num_steps)
    if dim < 1 or not 0 < k < float("inf") or not 0 < learning_rate < float("inf"):
        raise ValueError(f"expected dim >= 1, k > 0 and learning_rate > 0, got {dim}, {k} and {learning_rate}.")
    text = batches.text
    if sampler is None:
        sampler = samplers.unigram(num_sampled, power=power, num_groups=_groups(batches.batch_size))
    encoder = (SkipGram if batches.direction == "skipgram" else CBOW)(text.num_words, dim, rngs=nnx.Rngs(seed))
    counts = text.counts.astype(np.float32)
    head = cx.Head(text.num_words, dim, biases=False, counts=counts, rngs=nnx.Rngs(seed + 1))
    head.vectors[...] = jnp.zeros_like(head.vectors[...])  # as in word2vec: initial values prefer no class
    head.key_data.set_value(jax.random.key_data(jax.random.key(seed)))
    head.use(sampler, word2vec_loss(k) if loss is None else loss)
    model = Classifier(encoder, head)
    rate = learning_rate * batches.batch_size if optimizer is None else learning_rate
    transformation = _falling(adding_sgd if optimizer is None else optimizer, rate, max(1, num_steps))
    return model, cx.Optimizer(model, transformation, seed=seed)


@made_once
def _falling(optimizer: Callable[..., Any], rate: float, num_steps: int) -> optax.GradientTransformation:
    return optimizer(optax.linear_schedule(rate, rate * _LAST_RATE, num_steps))


def _groups(batch_size: int) -> int:
    """The fewest equal groups of at most 32 places, which share candidates."""
    least = -(-batch_size // _SHARING)
    return next(number for number in range(least, batch_size + 1) if batch_size % number == 0)


def word2vec_step_loss(model: Classifier, batch: Any) -> Float[Array, ""]:
    """The mean loss over all places of a batch of windows, even those without a word: the learning rate is per place.

    Args:
        model: from ``word2vec_model``.
        batch: of ``WindowBatches``.

    Returns:
        The loss, for ``fit(loss_fn=)``.
    """
    runs = batch.words if isinstance(batch, SkipGramBatch) else None
    return jnp.mean(model.head.loss(model(batch), batch.labels, reduction="none", runs=runs))


def vectors_of(model: Classifier) -> tuple[Float[np.ndarray, "num_words dim"], Float[np.ndarray, "num_words dim"]]:
    """The vectors of the words as inputs and as classes."""
    return np.array(model.encoder.words[...]), np.array(model.head.vectors[...])


def steps_of(batches: WindowBatches, epochs: float) -> int:
    """The steps of so many passes over the text."""
    if not 0 < epochs < float("inf"):
        raise ValueError(f"expected epochs above 0, got {epochs}.")
    return max(1, round(epochs * batches.batches_per_epoch))


@checked
def train_word2vec(
    text: Words,
    *,
    epochs: float = 5,
    direction: Direction = "skipgram",
    window: int = 5,
    subsample: float = 1e-3,
    batch_size: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    identity: dict[str, Any] | None = None,
    checkpoint_every: int | None = None,
    keep: int = 1,
    on_start: Callable[[], None] | None = None,
    progress: bool = True,
    **options: Any,
) -> Trained:
    """Trains word vectors on a text.

    Args:
        text: from ``data.text_words`` (files, or the standard library) or ``data.words_of`` (any sentences).
        epochs: passes over the text.
        direction: "skipgram" or "cbow".
        window: the most words to either side; each place draws its own number from 1 to this.
        subsample: share of the text from which on words are dropped at random, see ``WindowBatches``.
        batch_size: places per batch, see ``word2vec_batches``.
        seed: of everything random.
        folder: for checkpoints and metrics, see ``fit``; a run that was killed goes on there. None: nothing is written.
        identity: settings that must be the same when a run goes on; needed where ``options`` differ between runs.
        checkpoint_every: steps between checkpoints.
        keep: how many checkpoints are kept.
        on_start: see ``fit``.
        progress: whether to show a bar.
        options: of ``word2vec_model``: ``dim``, ``k``, ``sampler``, ``loss``, ``optimizer``, ``learning_rate`` ...

    Returns:
        See ``Trained``.

    Raises:
        ValueError: if the text is too short, or a number is out of range.
        FloatingPointError: when the loss is no longer finite.

    Example:
        >>> import candax as cx
        >>> text = cx.data.words_of("tiny", [["to", "be", "or", "not", "to", "be"]] * 40, min_count=1)
        >>> trained = cx.recipes.words.train_word2vec(text, epochs=1, dim=8, subsample=0, num_sampled=4, progress=False)
        >>> trained.vectors.vectors.shape
        (4, 8)
    """
    batches = word2vec_batches(
        text, batch_size=batch_size, seed=seed, direction=direction, window=window, subsample=subsample
    )
    num_steps = steps_of(batches, epochs)
    model, optimizer = word2vec_model(batches, num_steps, seed=seed, **options)
    fitted = fit(
        model,
        optimizer,
        batches,
        num_steps=num_steps,
        loss_fn=word2vec_step_loss,
        steps_per_call=_STEPS_PER_CALL if num_steps >= _LONG else 1,
        folder=folder,
        # The learning rate of every step depends on how many there are.
        identity={"num_steps": num_steps, **(identity or {})},
        checkpoint_every=checkpoint_every,
        keep=keep,
        log_every=200,
        on_start=on_start,
        description="words",
        progress=progress,
        unit=("words", text.total / (batches.batches_per_epoch * batches.batch_size)),
    )
    inputs, outputs = (WordVectors(text.words, vectors) for vectors in vectors_of(model))
    return Trained(inputs, outputs, model, fitted.step, fitted.records, fitted.seconds)
