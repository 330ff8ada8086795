"""Language: files, streams, n-grams, exact perplexity, and a training that beats what needs none."""

import itertools
import json
import lzma
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax.cli import main
from candax.data.python_stdlib import each_file
from candax.recipes.language import command, files, measures, ngrams
from candax.recipes.language.streams import StreamBatches
from tests.commands import fails


def folder_of(path, train="a b\n\na c <unk>\n", valid="a b\n", test="c d\n"):
    path.mkdir(exist_ok=True)
    for name, text in (("train", train), ("valid", valid), ("test", test)):
        (path / f"{name}.txt").write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def song(tmp_path_factory):
    """Lines that go around 12 words, from a word and by a stride that is the line's first word: two words back."""
    rng = np.random.default_rng(0)

    def lines(number):
        found = []
        for _ in range(number):
            start, stride = rng.integers(12), rng.integers(1, 3)
            found.append(" ".join([f"by{stride}", *(f"w{(start + stride * i) % 12}" for i in range(6))]))
        return "\n".join(found) + "\n"

    return folder_of(tmp_path_factory.mktemp("song") / "song", lines(500), lines(40), lines(40))


def options(song, out, *more, epochs=6, dropout=0.0):
    """Of a small run."""
    sizes = "--dim 16 --num-heads 2 --num-sampled 8 --num-streams 8 --length 10 --learning-rate 0.02 --curve-words 100"
    also = ["--epochs", str(epochs), "--dropout", str(dropout), "--out", str(out)]
    return ["language", "--dataset", song, *sizes.split(), *also, *more]


def test_words_ends_of_lines_and_what_is_unknown(tmp_path):
    text = files.load(folder_of(tmp_path / "tiny"))
    assert text.words == ("<eos>", "a", "<unk>", "b", "c")
    assert [text.words[i] for i in text.train] == ["a", "b", "<eos>", "<eos>", "a", "c", "<unk>", "<eos>"]
    assert [text.words[i] for i in text.test] == ["c", "<unk>", "<eos>"]
    assert text.unknown == (0, 1)
    assert "1 of 3 in test" in text.notes[0]
    rare = files.load(folder_of(tmp_path / "rare", train="a a b c\n" * 1))
    assert [rare.words[i] for i in rare.train] == ["a", "a", "<unk>", "<unk>", "<eos>"]
    frequent = files.load(folder_of(tmp_path / "frequent", train="a b c\n" * 3))
    assert frequent.words == ("<eos>", "a", "b", "c", "<unk>")
    assert frequent.counts.tolist() == [3, 3, 3, 3, 0]
    assert [frequent.words[i] for i in frequent.test] == ["c", "<unk>", "<eos>"]
    assert ngrams.KneserNey(frequent.train, 5).perplexity(frequent.test) < 100


def test_one_file_is_parted_in_order_and_may_be_compressed(tmp_path):
    lines = [f"w{i % 7} x" for i in range(60)]
    path = tmp_path / "book.txt.xz"
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    text = files.load(str(path))
    parts = [[text.words[i] for i in part] for part in (text.train, text.valid, text.test)]
    assert list(itertools.chain(*parts)) == [word for line in lines for word in (*line.split(), "<eos>")]
    assert [len(part) for part in parts] == [54 * 3, 9, 9]
    assert text.name == "book"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": ""}, "expected words in the part train, found none"),
        ({"valid": "\n\n"}, "expected words in the part valid, found none"),
        ({"train": "one\n"}, "expected three different words or more, <eos> among them"),
    ],
)
def test_bad_texts_say_what_is_wrong(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        files.load(folder_of(tmp_path / "bad", **change))


def test_other_files_say_what_is_wrong(tmp_path, capsys):
    folder = folder_of(tmp_path / "words", train="a b c a b c\n")
    with pytest.raises(ValueError, match="expected words of validation and test that the training part has"):
        files.load(folder, min_count=1)
    (tmp_path / "words" / "valid.txt").write_bytes("a\ncaf\xe9\n".encode("latin-1"))
    assert "valid.txt:2: expected text in UTF-8" in fails(capsys, "language", "--dataset", folder, "--out", tmp_path)
    (tmp_path / "words" / "valid.txt").unlink()
    assert "expected one text file valid.txt" in fails(capsys, "language", "--dataset", folder, "--out", tmp_path)
    missing = fails(capsys, "language", "--dataset", tmp_path / "none.txt", "--out", tmp_path)
    assert "expected --dataset to be python-stdlib, a text file, or a folder" in missing
    (tmp_path / "one.txt").write_text("token")
    assert "expected three lines or more" in fails(
        capsys, "language", "--dataset", tmp_path / "one.txt", "--out", tmp_path
    )


def test_the_standard_library_is_read_as_tokens(tmp_path):
    path = tmp_path / "some.py"
    path.write_text("def f(x):  # a comment\n    return x + 1.5, 'text'\n")
    assert files._code(path) == [
        ["def", "f", "(", "x", ")", ":"],
        ["<indent>", "return", "x", "+", "<number>", ",", "<text>"],
    ]
    path.write_text("def f(:\n  '''")
    assert list(each_file([path.name], lambda name: files._code(path))) == [(path.name, None)]


def test_streams_go_on_and_predict_each_word_once():
    ids = np.arange(100, dtype=np.int32)
    batches = StreamBatches(ids, 3, 4, context=2, seed=1)
    assert batches.batches_per_epoch == 8
    for epoch in range(2):
        found = [batches[epoch, index] for index in range(8)]
        labels = np.concatenate([batch.labels for batch in found], axis=1)
        assert (np.diff(labels.ravel()) == 1).all()
        for index, batch in enumerate(found):
            assert batch.fresh.tolist() == [index == 0] * 3
            assert (batch.words[:, 2:] == batch.labels - 1).all()
            before = batch.labels[:, :1] - 3 + np.arange(2)
            assert (batch.words[:, :2] == np.where(before >= 0, before, -1)).all()
    assert (batches[0, 3].labels == StreamBatches(ids, 3, 4, context=2, seed=1)[0, 3].labels).all()
    starts = {int(batches[epoch, 0].labels[0, 0]) for epoch in range(20)}
    assert starts <= set(range(1, 5))
    assert len(starts) > 1
    with pytest.raises(ValueError, match="expected a training part of more than 400 words"):
        StreamBatches(ids, 4, 100, seed=0)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_of_n_grams_sum_to_one(order):
    rng = np.random.default_rng(0)
    train = rng.integers(0, 6, 60).astype(np.int32)
    model = ngrams.KneserNey(train, 7, order=order)
    for history in ([], [2], [0, 3], [6, 6], list(train[-2:]), list(train[:2])):
        every = [model.probabilities(np.array([*history, word], np.int32))[-1] for word in range(7)]
        assert sum(every) == pytest.approx(1.0, abs=1e-9)
        assert min(every) > 0


def test_bigrams_by_hand():
    # a b a b c a: of bigrams ab comes twice, ba, bc and ca once, so that D = 3 / 5.
    model = ngrams.KneserNey(np.array([0, 1, 0, 1, 2, 0], np.int32), 3, order=2)
    # Before a stand b and c, before b stands a, before c stands b: 2, 1, 1 of 4, and D = 2 / 4 of them.
    one = {"a": (2 - 0.5) / 4 + 0.5 * 3 / 4 / 3, "c": (1 - 0.5) / 4 + 0.5 * 3 / 4 / 3}
    after_b = (1 - 0.6) / 2 + 0.6 * 2 / 2 * one["a"]
    assert model.probabilities(np.array([1, 0], np.int32))[1] == pytest.approx(after_b)
    after_a = 0.6 * 1 / 2 * one["c"]
    assert model.probabilities(np.array([0, 2], np.int32))[1] == pytest.approx(after_a)


@pytest.mark.parametrize(("context", "carry"), [(0, True), (0, False), (5, True)])
def test_perplexity_is_that_of_the_whole_text_or_of_each_window(context, carry):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 9, 60).astype(np.int32)
    head = cx.Head(9, 8, rngs=nnx.Rngs(0))
    head.vectors[...] = 3 * jnp.asarray(rng.normal(size=(9, 8)), jnp.float32)
    read = jnp.asarray(np.concatenate([[0], ids[:-1]]))[None]
    if context:
        encoder = cx.models.TransformerLanguageModel(head, context=context, max_distance=8, rngs=nnx.Rngs(1))
        whole = cx.models.TransformerLanguageModel(head, max_distance=8, rngs=nnx.Rngs(1))
        first = whole.read(read[:, :5], whole.start(1))[0][0]
        rest = whole.read(jnp.stack([read[0, at - 5 : at + 5] for at in range(5, 60, 5)]), whole.start(1))[0][:, 5:]
        h = jnp.concatenate([first, rest.reshape(-1, 8)])
    else:
        encoder = cx.models.LSTMLanguageModel(head, num_streams=3, carry=carry, dropout=0.5, rngs=nnx.Rngs(1))
        encoder.eval()
        parts = read if carry else read.reshape(-1, 5)
        h = encoder.read(parts, encoder.start(len(parts)))[0].reshape(-1, 8)
        encoder.train()
    expected = float(jnp.exp(jnp.mean(cx.losses.full_softmax(h, jnp.asarray(ids)[:, None], head.classes()))))
    found = measures.perplexity(cx.models.Classifier(encoder, head), ids, 0, length=5, context=context)
    # A stream of the LSTM has read four windows before its first word, which is nearly all that matters.
    assert found == pytest.approx(expected, rel=1e-5 if context or not carry else 1e-3)


@pytest.fixture(scope="module")
def trained(song, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    main(options(song, out, "--methods", "lstm", "transformer"))
    return out


def test_a_training_beats_what_needs_none_and_writes_its_results(trained):
    rows = json.loads((trained / "results.json").read_text())
    found = {(row["method"], row["split"]): row for row in rows}
    assert {(row["task"], row["data"]) for row in rows} == {("language", "song")}
    assert {split for _, split in found} == {"validation", "test"}
    for method in ("lstm", "transformer"):
        of = found[method, "test"]
        assert of["seed"] == 0
        assert of["seconds"] > 0
        assert of["perplexity"] < 0.5 * found["unigram", "test"]["perplexity"]
    assert found["lstm", "test"]["perplexity"] < found["Kneser-Ney bigrams", "test"]["perplexity"]
    assert (trained / "language.png").stat().st_size > 0


@pytest.mark.parametrize(("method", "number", "context"), [("lstm", 40, 0), ("transformer", 10, 10)])
def test_next_words_have_the_probabilities_of_the_evaluation(method, number, context, trained, song):
    text = files.load(song)
    found = cx.recipes.load(next((trained / "models").glob(f"{method}-*")))
    ids = text.test[:number]
    words = [text.words[i] for i in ids]
    answers = found.complete([words[:place] for place in range(number)], len(text.words), unknown=True)
    chances = [dict(zip(*answer, strict=True))[word] for answer, word in zip(answers, words, strict=True)]
    expected = measures.perplexity(found.model, ids, text.end, length=10, context=context)
    assert np.exp(-np.mean(np.log(chances))) == pytest.approx(expected, rel=1e-4)
    assert all(sum(of) == pytest.approx(1, abs=1e-4) for _, of in answers)


def test_texts_are_completed_on_the_command_line(trained, tmp_path, capsys):
    folder = next((trained / "models").glob("lstm-*"))
    (tmp_path / "texts.txt").write_text("by1 w3 w4\n\nby2 w3 strange w5\n")
    main(["predict", str(folder), str(tmp_path / "texts.txt"), "--k", "2", "--format", "jsonl"])
    told = capsys.readouterr()
    first, second = map(json.loads, told.out.splitlines())
    assert (first["input"], first["names"][0], second["names"][0]) == ("by1 w3 w4", "w5", "w7")
    assert len(first["scores"]) == 2
    assert "read as <unk> or left out: 1" in told.err
    index = tmp_path / "index.safetensors"
    again = cx.recipes.load(folder).use_index(index).complete([["by1", "w3", "w4"]], 2)
    assert again[0][0] == first["names"]
    # The index finds all of so few words.
    np.testing.assert_allclose(again[0][1], first["scores"], rtol=1e-4)
    with pytest.raises(ValueError, match="lists of words"):
        cx.recipes.load(folder).complete(["by1 w3"], 2)
    assert "has 2: give the folder of one" in fails(capsys, "predict", trained, tmp_path / "texts.txt")


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(song, tmp_path, monkeypatch):
    """What the LSTM carries on is in the checkpoint."""

    def run(out):
        main(options(song, out, "--checkpoint-every", "7", epochs=1, dropout=0.2))
        rows = [{**row, "seconds": 0, "words_per_second": 0} for row in json.loads((out / "results.json").read_text())]
        (folder,) = (out / "models").glob("lstm-*")
        exported = cx.training.export(folder, folder / "exported")
        return rows, {path.name: np.load(path) for path in exported if path.suffix == ".npy"}

    expected, arrays = run(tmp_path / "whole")
    take = StreamBatches.__getitem__
    taken = []

    def stopping(self, position):
        taken.append(position)
        if len(taken) == 25:
            signal.raise_signal(signal.SIGINT)
        return take(self, position)

    monkeypatch.setattr(StreamBatches, "__getitem__", stopping)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        run(tmp_path / "parts")
    monkeypatch.setattr(StreamBatches, "__getitem__", take)
    found, again = run(tmp_path / "parts")
    assert found == expected
    for name, array in arrays.items():
        assert (again[name] == array).all(), name


def test_pairs_of_words_are_classes(song):
    text = files.load(song)
    pairs = files.in_pairs(text, 100_000)
    assert pairs.num_words == 100_000
    assert len(pairs.train) == len(text.train) // 2
    assert pairs.train.min() > 0
    both = text.train[: 2 * len(pairs.train)].reshape(-1, 2)
    assert len(np.unique(pairs.train)) == len(np.unique(both, axis=0))
    assert len(np.unique(np.column_stack([pairs.train, both]), axis=0)) == len(np.unique(both, axis=0))


def test_class_vectors_of_pairs_are_exported(song, tmp_path, capsys):
    main(options(song, tmp_path, "--pairs", "200", epochs=0.1))
    main(["export", str(tmp_path), "--out", str(tmp_path / "export")])
    assert np.load(tmp_path / "export" / "head.class_vectors.npy").shape == (200, 16)
    assert json.loads((tmp_path / "export" / "head.class_names.json").read_text())[7] == "pair 7"
    capsys.readouterr()
    assert "got one with --pairs" in fails(capsys, "predict", tmp_path, Path(song) / "test.txt")


@pytest.mark.parametrize(
    ("method", "sampler", "loss"),
    [("lstm", "log_uniform", "sampled_softmax"), ("full_softmax", "unigram", "css"), ("lstm", "uniform", "nce")],
)
def test_any_sampler_and_loss_go(method, sampler, loss, song, tmp_path):
    settings = command.LanguageSettings(
        dataset=song, methods=(method,), sampler=sampler, loss=loss, dim=8, num_sampled=4, num_streams=8, length=10,
        epochs=0.1, num_heads=2, context="truncated", split="validation", curve_words=100, out=tmp_path,
    )  # fmt: skip
    rows = command.language(settings)
    assert np.isfinite(rows[-1]["validation"])
    assert "test" not in rows[-1]


def test_the_transformer_has_a_rate_of_its_own_unless_one_is_given():
    usual = command.LanguageSettings().ready()
    rates = {name: command._of_method(usual, name).learning_rate for name in command.METHODS}
    assert rates == {"lstm": 0.012, "full_softmax": 0.006, "transformer": 0.003, "transformer_full_softmax": 0.003}
    assert command.LanguageSettings(model="transformer").ready().learning_rate == 0.003
    given = command.LanguageSettings(learning_rate=0.01).ready()
    assert command._of_method(given, "transformer").learning_rate == 0.01


def test_an_lstm_has_no_heads_to_divide_its_coordinates():
    command.LanguageSettings(model="lstm", dim=650).ready()
    with pytest.raises(ValueError, match="heads divide"):
        command.LanguageSettings(model="transformer", dim=650).ready()
    with pytest.raises(ValueError, match="for transformer as the heads divide, got --dim 18 and --num-heads 4"):
        command.LanguageSettings(methods=("lstm", "transformer"), dim=18).ready()


def test_a_text_that_is_too_short_for_its_streams_ends_before_the_baselines(tmp_path, monkeypatch):
    monkeypatch.setattr(ngrams, "unigram_perplexity", pytest.fail)
    settings = command.LanguageSettings(dataset=folder_of(tmp_path / "tiny"), out=tmp_path / "out")
    with pytest.raises(ValueError, match="lower --num-streams or --length"):
        command.language(settings)
