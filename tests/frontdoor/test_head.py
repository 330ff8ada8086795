"""What people expect of a softmax head: predictions, biases, transforms, computed vectors, growth."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.rows import tables

CLASSES, DIM = 50, 4
UNIFORM = cx.samplers.uniform(8)
RNG = np.random.default_rng(0)
H = RNG.normal(size=(2, 3, DIM)).astype(np.float32)
LABELS = np.array([[1, 2, 3], [4, -1, 49]], np.int32)


def make_head(**options):
    head = cx.Head(CLASSES, DIM, **{"sampler": UNIFORM, "rngs": nnx.Rngs(0), **options})
    if isinstance(head.vectors, cx.rows.Table):
        head.vectors[...] = jnp.asarray(np.random.default_rng(1).normal(size=head.vectors.shape), jnp.float32)
    return head


@nnx.jit
def gradients(head):
    return cx.value_and_grad(lambda head: head.loss(H, LABELS))(head)


@functools.partial(nnx.jit, static_argnames="reduction")
def loss_of(head, labels=LABELS, **options):
    return head.loss(H, labels, **options)


@nnx.jit
def update(optimizer, head, grads):
    optimizer.update(head, grads)


def soft_cap(logits):
    return 3.0 * jnp.tanh(logits / 3.0)


@pytest.mark.parametrize("options", [{}, {"transform": soft_cap}, {"normalized": True}, {"counts": np.arange(50.0)}])
def test_all_logits_best_classes_and_log_probabilities_agree(options):
    head = make_head(**options)
    several = np.stack([LABELS, LABELS], axis=-1)

    @nnx.jit
    def predict(head):
        of_labels = (head.log_prob(H, LABELS, block_size=16), head.log_prob(H, several))
        return head(H), head.top_k(H, 5, block_size=16), of_labels

    logits, (scores, ids), of_labels = jax.tree.map(np.asarray, predict(head))
    assert logits.shape == (2, 3, CLASSES)
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=-1)[..., :5])
    np.testing.assert_allclose(scores, -np.sort(-logits, axis=-1)[..., :5], rtol=1e-5)
    log_prob = jax.nn.log_softmax(logits)
    wanted = np.where(LABELS >= 0, np.take_along_axis(log_prob, np.maximum(LABELS, 0)[..., None], -1)[..., 0], -np.inf)
    np.testing.assert_allclose(of_labels[0], wanted, rtol=1e-4)
    np.testing.assert_allclose(of_labels[1], np.stack([wanted, wanted], -1), rtol=1e-4)


@pytest.mark.parametrize(
    "loss",
    [
        cx.losses.full_softmax,
        functools.partial(cx.losses.full_softmax, block_size=16),
        cx.losses.over_all_classes(cx.losses.one_vs_all),
    ],
)
def test_all_classes_are_scored_without_promotion_of_ranks(loss):
    head = make_head(sampler=None, loss=loss)
    head.biases.set_value(jnp.arange(head.biases.shape[0]) / 9.0)
    logits = head(H)
    with jax.numpy_rank_promotion("raise"):
        np.testing.assert_array_equal(head(H), logits)
        assert jnp.isfinite(gradients(head)[0])
        jax.eval_shape(lambda: (head.top_k(H, 5, exclude=LABELS[..., None]), head.log_prob(H, LABELS)))
        jax.eval_shape(lambda: head.sample(jax.random.key(0), H))


@pytest.mark.parametrize(
    ("loss", "dtype", "tables"),
    [
        (cx.losses.css, jnp.bfloat16, None),
        (cx.losses.full_softmax, jnp.bfloat16, None),
        (functools.partial(cx.losses.full_softmax, block_size=16), jnp.bfloat16, None),
        (cx.losses.css, jnp.float32, cx.rows.exact_adamw(0.1)),
        (cx.losses.css, jnp.float32, cx.rows.exact_momentum(0.1, nesterov=True)),
        (cx.losses.css, jnp.float32, cx.rows.exact_rmsprop(0.1)),
    ],
)
def test_a_step_without_promotion_of_types(loss, dtype, tables):
    sampler = UNIFORM if loss is cx.losses.css else None
    head = cx.Head(CLASSES, DIM, sampler=sampler, loss=loss, dtype=dtype, rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(head, optax.sgd(0.1), tables=tables, clip_norm=1.0)

    def step(head, optimizer, h):
        optimizer.update(head, cx.value_and_grad(lambda head: head.loss(h, LABELS))(head)[1])
        return head(h), head.top_k(h, 5), head.log_prob(h, LABELS)

    with jax.numpy_dtype_promotion("strict"):
        nnx.eval_shape(step, head, optimizer, jnp.asarray(H, dtype))


def test_classes_that_are_excluded_are_not_among_the_best():
    head = make_head()
    best = np.asarray(head.top_k(H, 3)[1])
    exclude = np.concatenate([best[..., :2], np.full((2, 3, 1), -1)], axis=-1)
    np.testing.assert_array_equal(head.top_k(H, 1, exclude=exclude, block_size=7)[1][..., 0], best[..., 2])


def test_where_too_few_classes_are_left_there_is_none():
    head = make_head()
    exclude = np.broadcast_to(np.arange(1, CLASSES), (2, 3, CLASSES - 1))
    scores, ids = head.top_k(H, 3, exclude=exclude)
    assert ids.tolist() == [[[0, -1, -1]] * 3] * 2
    assert np.isfinite(scores[..., 0]).all()
    assert (np.asarray(scores[..., 1:]) == -np.inf).all()


def test_classes_are_drawn_from_the_softmax_also_in_a_decoding_scan():
    head = make_head()
    one = jnp.broadcast_to(jnp.asarray(H[0, 0]), (4000, DIM))
    with pytest.raises(ValueError, match=r"expected key to be a key of jax.random.key, got 0"):
        head.sample(0, one)
    drawn = np.asarray(head.sample(jax.random.key(0), one, block_size=16))
    wanted = np.asarray(jax.nn.softmax(head(H[0, 0])))
    error = np.sqrt(wanted * (1 - wanted) / 4000)
    assert np.all(np.abs(np.bincount(drawn, minlength=CLASSES) / 4000 - wanted) < 5 * error + 1e-9)

    @jax.jit
    def decode(start):
        def step(h, key):
            token = head.sample(key, h)
            return head.vectors[...][token], token

        return jax.lax.scan(step, start, jax.random.split(jax.random.key(1), 6))[1]

    assert decode(jnp.asarray(H[:, 0])).shape == (6, 2)


@pytest.mark.parametrize(
    "sampler", [UNIFORM, cx.samplers.uniform(8, num_groups=None), cx.samplers.uniform(8, num_groups=3)]
)
def test_blocks_of_predictions_change_nothing(sampler):
    def run(block_size):
        head = make_head(sampler=sampler, block_size=block_size)
        return gradients(head)

    (loss, grads), (wanted, wanted_grads) = run(2), run(None)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    np.testing.assert_allclose(grads.rows["vectors"].rows, wanted_grads.rows["vectors"].rows, rtol=1e-5, atol=1e-7)


def test_losses_of_each_prediction_and_their_weighted_mean():
    head = make_head()
    head.eval()
    weights = RNG.random((2, 3)).astype(np.float32)
    where = np.array([[True, False, True], [True, True, True]])
    each = np.asarray(loss_of(head, where=where, reduction="none"))
    assert each.shape == (2, 3)
    assert each[0, 1] == each[1, 1] == 0
    counted = where & (LABELS >= 0)
    mean = loss_of(head, where=where, weights=weights)
    assert float(mean) == pytest.approx(float((each * weights).sum() / weights[counted].sum()), rel=1e-5)
    assert float(loss_of(head, where=where, reduction="sum")) == pytest.approx(float(each.sum()), rel=1e-5)
    nothing = loss_of(head, where=np.zeros_like(where))
    assert float(nothing) == 0


@pytest.mark.parametrize("sampler", ["in_batch", "learned_unigram"])
def test_masked_predictions_reach_neither_sampler_nor_state(sampler):
    """The same predictions and labels, with rubbish where they do not count, give the same everything."""
    where = np.array([[True, False, True], [True, True, False]])
    samplers = {"in_batch": cx.samplers.in_batch(), "learned_unigram": cx.samplers.learned_unigram(8, memory=16)}

    def run(h, labels):
        head = make_head(sampler=samplers[sampler], counts=np.ones(CLASSES))
        loss, grads = nnx.jit(cx.value_and_grad(lambda head: head.loss(h, labels, where=where)))(head)
        update(cx.Optimizer(head, optax.sgd(0.1)), head, grads)
        return float(loss), jax.tree.map(np.asarray, nnx.state(head))

    clean = run(np.where(where[..., None], H, 0), np.where(where, LABELS, -1))
    dirty = run(np.where(where[..., None], H, np.nan), np.where(where, LABELS, 10**6))
    assert clean[0] == dirty[0]
    assert jax.tree.all(jax.tree.map(np.array_equal, clean[1], dirty[1]))


def test_biases_start_at_the_log_prior_where_counts_are_given():
    counts = np.arange(CLASSES, dtype=np.float32)
    head = make_head(counts=counts)
    np.testing.assert_allclose(head.biases[...], np.log((counts + 1) / (counts + 1).sum()), rtol=1e-5)
    assert np.all(np.asarray(make_head().biases[...]) == 0)
    assert make_head(biases=False).biases is None


def test_a_transform_stands_before_the_loss_and_before_the_full_softmax():
    full = make_head(sampler=None, transform=soft_cap)
    logits = soft_cap(make_head()(H))
    wanted = -np.asarray(jax.nn.log_softmax(logits))[LABELS >= 0, LABELS[LABELS >= 0]].mean()
    assert float(loss_of(full)) == pytest.approx(wanted, rel=1e-5)
    every_class = make_head(sampler=cx.samplers.top_k(CLASSES), loss=cx.losses.css, transform=soft_cap)
    assert float(loss_of(every_class)) == pytest.approx(wanted, rel=1e-4)


def test_statistics_of_a_step():
    head = make_head(sampler=cx.samplers.uniform(16))

    @nnx.jit
    def run(head):
        _, draw = head.loss(H, LABELS, return_draw=True)
        return draw.candidates.ids, draw.statistics()

    ids, statistics = run(head)
    statistics = {name: float(value) for name, value in statistics.items()}
    assert statistics["predictions"] == 5
    assert statistics["candidates"] == 16
    assert 1 <= statistics["effective_samples"] <= 16
    drawn = np.asarray(ids[0])
    wanted = np.mean([(drawn == label).sum() for label in LABELS[LABELS >= 0]])
    assert statistics["hits"] == pytest.approx(wanted)


def test_an_embed_takes_the_values_of_nnx_embed_and_gives_them_back():
    theirs, ours = nnx.Embed(9, 3, rngs=nnx.Rngs(0)), cx.Embed(9, 3, rngs=nnx.Rngs(1))
    nnx.update(ours, nnx.state(theirs))
    assert isinstance(ours.embedding, cx.rows.Table)
    np.testing.assert_array_equal(ours(jnp.array([3, 8])), theirs(jnp.array([3, 8])))
    np.testing.assert_allclose(ours.attend(jnp.ones((2, 3))), theirs.attend(jnp.ones((2, 3))), rtol=1e-6)
    padded = cx.Embed(9, 3, num_shards=4, rngs=nnx.Rngs(1))
    padded.embedding[:9] = ours.embedding[...]
    np.testing.assert_array_equal(padded.attend(jnp.ones((2, 3))), ours.attend(jnp.ones((2, 3))))
    assert (padded.num_embeddings, padded.embedding.shape) == (9, (12, 3))
    nnx.update(theirs, nnx.state(cx.Embed(9, 3, rngs=nnx.Rngs(2))))
    assert theirs(jnp.array([1])).shape == (1, 3)
    same = cx.Embed(9, 3, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(same.embedding[...], nnx.Embed(9, 3, rngs=nnx.Rngs(0)).embedding[...])


def test_evaluation_changes_nothing_and_training_counts():
    head = make_head()
    head.eval()
    before = jax.tree.map(np.asarray, nnx.state(head))
    assert float(loss_of(head)) == float(loss_of(head))
    assert jax.tree.all(jax.tree.map(np.array_equal, before, jax.tree.map(np.asarray, nnx.state(head))))
    head.train()
    assert float(loss_of(head)) != float(loss_of(head))
    assert int(head.draws[...]) == 2


class Items(nnx.Module):
    """Item vectors from two features, with batch statistics."""

    def __init__(self, rngs, norm=True):
        self.kinds = cx.Embed(7, DIM, rngs=rngs)
        self.norm = nnx.BatchNorm(DIM, rngs=rngs) if norm else None
        self.out = nnx.Linear(DIM, DIM, rngs=rngs)

    def __call__(self, ids, where):
        h = self.kinds(ids % 7) * (1 + (ids[:, None] // 7) / 10)
        return self.out(h if self.norm is None else self.norm(h, mask=where[:, None]))


def test_computed_vectors_see_only_candidates_and_train_like_a_table_of_all():
    head = cx.Head(
        CLASSES, vectors=Items(nnx.Rngs(0), norm=False), sampler=UNIFORM, loss=cx.losses.css, rngs=nnx.Rngs(1)
    )
    assert head.dim == DIM
    loss, grads = gradients(head)
    head.draws[...] = jnp.int32(0)

    key = head.step_key()

    def by_hand(items):
        classes = cx.Classes(items(jnp.arange(CLASSES), None), head.biases[...])
        state = UNIFORM.init(key, classes)
        return cx.sampled_loss(H, LABELS, classes, sampler=UNIFORM, state=state, key=key, loss=cx.losses.css)

    wanted, dense = nnx.jit(nnx.value_and_grad(by_hand))(head.vectors.function)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    np.testing.assert_allclose(
        grads.params["vectors"]["function"]["out"]["kernel"][...], dense["out"]["kernel"][...], rtol=1e-4, atol=1e-6
    )
    rows = grads.rows["vectors.function.kinds.embedding"]
    got = np.zeros((7, DIM), np.float32)
    got[np.asarray(rows.ids)[np.asarray(rows.ids) < 7]] = np.asarray(rows.rows)[np.asarray(rows.ids) < 7]
    np.testing.assert_allclose(got, dense["kinds"]["embedding"][...], rtol=1e-4, atol=1e-6)


def test_computed_vectors_are_read_as_a_whole_beside_the_loss():
    head = cx.Head(CLASSES, vectors=Items(nnx.Rngs(0), norm=False), sampler=UNIFORM, rngs=nnx.Rngs(1))

    def read(head):
        return head.top_k(H, 2), head.log_prob(H, LABELS)

    def loss_and_more(head):
        return head.loss(H, LABELS) + jnp.mean(head(H) ** 2), read(head)

    @nnx.jit
    def look(head):
        (_, inside), grads = cx.value_and_grad(loss_and_more, has_aux=True)(head)
        return inside, read(head), grads

    inside, outside, grads = look(head)
    jax.tree.map(np.testing.assert_array_equal, inside, outside)
    assert grads.rows["vectors.function.kinds.embedding"].ids.tolist()[:7] == list(range(7))


class Slopes(nnx.Module):
    """Item vectors that are gradients with respect to rows of a table of their own."""

    def __init__(self, rngs):
        self.kinds = cx.Embed(7, DIM, rngs=rngs)

    def __call__(self, ids):
        _, grads = cx.value_and_grad(lambda kinds: jnp.sum(kinds(jnp.arange(7)) ** 3))(self.kinds)
        return grads.rows["embedding"].rows[ids % 7]


def test_computed_vectors_may_differentiate_lookups_of_their_own():
    head = cx.Head(CLASSES, vectors=Slopes(nnx.Rngs(0)), sampler=UNIFORM, rngs=nnx.Rngs(1))
    np.testing.assert_allclose(head.whole().vectors, head.vectors.of(jnp.arange(CLASSES)), rtol=1e-6)
    assert np.any(head.whole().vectors != 0)


def test_fillers_enter_no_batch_statistics():
    """The statistics are those of the distinct classes among labels and candidates."""
    head = cx.Head(CLASSES, vectors=Items(nnx.Rngs(0)), sampler=UNIFORM, rngs=nnx.Rngs(1))
    step = cx.value_and_grad(lambda head: head.loss(H, LABELS, return_draw=True), has_aux=True)
    (_, draw), _ = nnx.jit(step)(head)
    ids = np.union1d(np.asarray(draw.candidates.ids), LABELS[LABELS >= 0])
    fresh = Items(nnx.Rngs(0))
    nnx.jit(lambda items: items(jnp.asarray(ids), jnp.ones(len(ids), bool)))(fresh)
    np.testing.assert_allclose(head.vectors.function.norm.mean[...], fresh.norm.mean[...], rtol=1e-5, atol=1e-7)


def test_computed_vectors_train_and_predict_with_a_sampler_that_indexes():
    sampler = cx.samplers.every(cx.samplers.top_k(8), 2)
    head = cx.Head(CLASSES, vectors=Items(nnx.Rngs(0)), sampler=sampler, loss=cx.losses.css, rngs=nnx.Rngs(1))
    optimizer = cx.Optimizer(head, optax.adam(0.01))

    @nnx.jit
    def step(head, optimizer):
        loss, grads = cx.value_and_grad(lambda head: head.loss(H, LABELS))(head)
        optimizer.update(head, grads)
        return loss

    losses = []
    for number in range(30):
        cx.refresh(head, number)
        losses.append(float(step(head, optimizer)))
    assert losses[-1] < losses[0] - 0.5
    kept = np.asarray(head.classes().vectors)
    cx.refresh(head, 2)
    assert np.any(kept != np.asarray(head.classes().vectors))
    head.eval()
    logits = np.asarray(head(H))
    np.testing.assert_array_equal(head.top_k(H, 1)[1][..., 0], logits.argmax(axis=-1))


def test_a_sampler_that_would_see_computed_vectors_of_the_start_to_the_end_is_told_of():
    items = Items(nnx.Rngs(0))
    with pytest.warns(UserWarning, match=r"computed again at its refreshes, and it has none.*every\(sampler, 50\)"):
        cx.Head(CLASSES, vectors=items, sampler=cx.samplers.top_k(8), loss=cx.losses.css, rngs=nnx.Rngs(1))
    with warnings.catch_warnings(action="error"):
        for sampler in (UNIFORM, cx.samplers.every(cx.samplers.top_k(8), 50)):
            cx.Head(CLASSES, vectors=items, sampler=sampler, loss=cx.losses.css, rngs=nnx.Rngs(1))
        cx.Head(CLASSES, DIM, sampler=cx.samplers.top_k(8), loss=cx.losses.css, rngs=nnx.Rngs(1))


def test_a_full_softmax_over_computed_vectors_has_a_gradient():
    head = cx.Head(CLASSES, vectors=Items(nnx.Rngs(0), norm=False), rngs=nnx.Rngs(1))
    _, grads = gradients(head)
    assert float(jnp.abs(grads.params["vectors"]["function"]["out"]["kernel"][...]).sum()) > 0


def test_a_head_grows_and_the_optimizer_keeps_its_rows():
    head = make_head(counts=np.ones(CLASSES), sampler=cx.samplers.unigram(8))
    optimizer = cx.Optimizer(head, optax.adam(0.1))

    def step():
        update(optimizer, head, gradients(head)[1])

    step()
    before = jax.tree.map(np.asarray, (head.vectors[...], optimizer.table_states.get_value()["vectors"]))
    for number, counts in ((60, np.ones(CLASSES)), (60, -np.ones(60)), (60.5, np.ones(60)), (3, np.ones(3))):
        with pytest.raises(ValueError, match="expected"):
            head.grow(number, counts=counts, rngs=nnx.Rngs(5))
    assert head(H).shape[-1] == CLASSES  # a refusal changes nothing
    head.grow(60, counts=np.ones(60), rngs=nnx.Rngs(5))
    with pytest.raises(ValueError, match=r"optimizer\.grow\(model\)"):
        step()
    optimizer.grow(head)
    after = jax.tree.map(np.asarray, (head.vectors[...], optimizer.table_states.get_value()["vectors"]))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new[:CLASSES] if new.ndim else new, old)
    assert head(H).shape == (2, 3, 60)
    assert np.isfinite(float(loss_of(head, np.where(LABELS == 49, 59, LABELS))))
    step()


def test_a_tied_table_has_the_values_of_the_embedding():
    words = cx.Embed(CLASSES, DIM, rngs=nnx.Rngs(0))
    wanted = np.asarray(words.embedding[...])
    head = cx.Head(CLASSES, table=words, sampler=UNIFORM, rngs=nnx.Rngs(1))
    assert head.vectors is words.embedding
    np.testing.assert_array_equal(head.vectors[...], wanted)
    assert cx.Head(CLASSES, table=head, sampler=UNIFORM, rngs=nnx.Rngs(1)).vectors is words.embedding


@pytest.mark.parametrize("num_classes", [1, 2])
def test_very_few_classes(num_classes):
    head = cx.Head(num_classes, DIM, sampler=cx.samplers.uniform(4), loss=cx.losses.css, rngs=nnx.Rngs(0))
    loss = head.loss(H[0], np.zeros(3, np.int32))
    assert np.isfinite(float(loss))


def test_a_margin_goes_with_a_normalised_head():
    loss = cx.losses.with_margin(functools.partial(cx.losses.arcface, margin=0.3, scale=8.0), cx.losses.css)
    head = make_head(normalized=True, sampler=cx.samplers.partial_fc(16), loss=loss)
    value, grads = gradients(head)
    assert np.isfinite(float(value))
    assert float(grads.norm()) > 0


def test_vectors_start_small_and_those_of_cosines_at_length_one():
    head = cx.Head(4000, 64, sampler=UNIFORM, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(jnp.std(head.vectors[...]), 0.1 / 8, rtol=0.02)
    normalized = cx.Head(4000, 64, sampler=UNIFORM, normalized=True, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(jnp.std(normalized.vectors[...]), 1 / 8, rtol=0.02)
    assert normalized.biases is None
    assert normalized.classes().normalized
    with pytest.raises(ValueError, match="no biases with normalized=True"):
        cx.Head(10, 4, sampler=UNIFORM, normalized=True, biases=True, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(("sizes", "name"), [((0, 4), "num_classes"), ((10, 0), "dim")])
def test_sizes_out_of_range_are_refused(sizes, name):
    with pytest.raises(ValueError, match=f"expected {name} to be an integer >= 1.*, got 0"):
        cx.Head(*sizes, sampler=UNIFORM, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dim", [1, 64, 67, 96])
def test_a_large_table_is_drawn_in_parts_from_the_same_distribution(dim, dtype, monkeypatch):
    monkeypatch.setattr(tables, "_AT_ONCE", 1)
    vectors = tables.normal_table(jax.random.key(0), (1999, dim), dim**-0.5, jnp.dtype(dtype))
    assert vectors.dtype == dtype
    columns = np.asarray(vectors, np.float64).T * dim**0.5
    # Every column standard normal: means and deviations of 1999 numbers; no two columns alike.
    np.testing.assert_allclose(columns.mean(axis=1), 0, atol=5 / 1999**0.5)
    np.testing.assert_allclose(columns.std(axis=1), 1, atol=5 / 3998**0.5)
    between = columns @ columns.T / 1999 - np.eye(dim)
    assert np.abs(between - np.diag(np.diag(between))).max() < 6 / 1999**0.5


LSH = cx.samplers.lsh(hash=cx.samplers.simhash(), num_tables=2, num_hashes=2, budget=8, fill="uniform", num_fill=4)


class Shared(nnx.Module):
    """Two heads over one table."""

    def __init__(self, sampler):
        counts = np.arange(1, CLASSES + 1)
        self.first = cx.Head(CLASSES, DIM, sampler=UNIFORM, rngs=nnx.Rngs(0))
        self.other = cx.Head(CLASSES, table=self.first, sampler=sampler, counts=counts, rngs=nnx.Rngs(1))


@pytest.mark.parametrize(
    ("sampler", "tables"), [(UNIFORM, None), (LSH, cx.rows.exact_adam(0.1))], ids=["lazy", "exact"]
)
def test_other_heads_of_a_table_that_grows_stay_as_they_are(sampler, tables):
    model = Shared(sampler)
    optimizer = cx.Optimizer(model, optax.adam(0.1), tables=tables)

    @nnx.jit
    def step(model, optimizer):
        value, grads = cx.value_and_grad(lambda model: model.first.loss(H, LABELS) + model.other.loss(H, LABELS))(model)
        optimizer.update(model, grads)
        return value, grads

    step(model, optimizer)
    before = jax.tree.map(np.asarray, (model.other(H), model.other.log_prob(H, LABELS), model.other.top_k(H, 3)))
    model.first.grow(60, rngs=nnx.Rngs(3))
    after = (model.other(H), model.other.log_prob(H, LABELS), model.other.top_k(H, 3))
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-5), after, before)
    model.other.eval()
    assert np.isfinite(float(model.other.loss(H, LABELS)))
    model.other.train()
    optimizer.grow(model)
    value, grads = step(model, optimizer)
    assert np.isfinite(float(value))
    assert isinstance(grads.rows["other.biases"], cx.rows.RowGradients)
    assert model.other.biases.shape == (CLASSES,)
    biases = model.other.classes().biases[:CLASSES]
    model.other.grow(55, counts=np.arange(1, 56), rngs=nnx.Rngs(4))  # within the table, as it is by now
    np.testing.assert_allclose(model.other.biases[:CLASSES], biases, rtol=1e-5)
    np.testing.assert_allclose(model.other.biases[CLASSES:55], np.log(np.arange(52, 57) / (55 * 58 / 2)), rtol=1e-5)
    assert model.other.biases.shape == (60,)


def test_rows_without_a_class_have_no_part_in_the_log_prior():
    words = cx.Embed(200, DIM, rngs=nnx.Rngs(0))
    counts = jnp.full(CLASSES, 9)
    head = cx.Head(CLASSES, table=words, counts=counts, sampler=cx.samplers.unigram(8), rngs=nnx.Rngs(0))
    np.testing.assert_allclose(head.biases[:CLASSES], -np.log(CLASSES), rtol=1e-6)
    sharded = cx.Head(CLASSES, DIM, counts=counts, num_shards=4, sampler=cx.samplers.unigram(8), rngs=nnx.Rngs(0))
    assert sharded.biases.shape == (52,)
    np.testing.assert_allclose(sharded.biases[:CLASSES], -np.log(CLASSES), rtol=1e-6)


def test_counts_are_copied_from_the_user():
    counts = jnp.ones(CLASSES)
    head = make_head(counts=counts, sampler=cx.samplers.unigram(8))
    assert head.counts[...].unsafe_buffer_pointer() != counts.unsafe_buffer_pointer()
