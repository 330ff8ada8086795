"""Settings of commands: what is refused, what is a default, what is read from a file, and folders."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from scipy.sparse import csr_array

import candax as cx
from candax import cli
from candax.recipes import common
from candax.recipes.common import Count, Positive, Share
from candax.recipes.common.options import saved_settings
from candax.recipes.extreme import setting
from candax.recipes.extreme.compare import Compare
from candax.recipes.extreme.train import Train
from candax.recipes.language.command import LanguageSettings
from candax.recipes.links.command import LinksSettings
from candax.recipes.sequences.command import SequencesSettings
from tests.commands import fails


@dataclasses.dataclass(frozen=True)
class Mine(common.Settings):
    num_classes: Count = 1000
    sizes: tuple[Count, ...] = (1, 2)
    epochs: Positive | None = None
    rate: Share = 0.1
    QUICK: ClassVar = {"num_classes": 10, "sizes": (1,)}

    def check(self):
        super().check()
        self.expect(self.rate * self.num_classes >= 1, "a class or more", "rate", "num_classes")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Mine(num_classes=0), "expected --num-classes of 1 or more, got 0"),
        (Mine(sizes=(3, 0)), r"expected --sizes of 1 or more, got \(3, 0\)"),
        (Mine(epochs=float("inf")), "expected --epochs above 0, got inf"),
        (Mine(rate=1.5), "expected --rate above 0 and at most 1, got 1.5"),
        (Mine(seed=-1), "expected --seed of 0 or more"),
        (Mine(num_classes=2), "expected a class or more, got --rate 0.1 and --num-classes 2"),
        # Samplers and losses that no training uses.
        (SequencesSettings(methods=("full_softmax",), sampler="uniform"), "--sampler, got --sampler uniform and"),
        (SequencesSettings(loss=None, sampler="uniform"), "--sampler, got --sampler uniform and --loss None"),
        (LinksSettings(methods=("full_softmax",), loss="nce"), "--loss, got --loss nce and --methods"),
        (LanguageSettings(methods=("full_softmax",), sampler="uniform"), "--sampler, got --sampler uniform and"),
        (Train(sampler=None, loss="css"), r"full softmax\), got --loss css"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        settings.ready()


def test_quick_sizes_take_the_place_of_defaults_alone():
    assert Mine().ready() == Mine(out=Path("runs/test_settings"))  # by the name of its module, where no folder is given
    assert Mine(quick=True).ready().out == Path("runs/test_settings_quick")
    quick = Mine(quick=True, num_classes=50).ready()
    assert (quick.num_classes, quick.sizes) == (50, (1,))
    default = Mine().num_classes
    assert Mine(quick=True, num_classes=default).ready().num_classes == default
    assert quick.ready() == quick
    assert quick.unless_given({"sizes": (5,), "rate": 0.5}) == dataclasses.replace(quick, rate=0.5)


@pytest.mark.parametrize("kind", [Train, Compare])
@pytest.mark.parametrize(
    ("given", "steps"), [({}, 20), ({"epochs": 2.0}, None), ({"epochs": 2.0, "steps": 7}, 7), ({"steps": 7}, 7)]
)
def test_epochs_that_are_given_stand_before_the_steps_of_quick(kind, given, steps):
    assert kind(quick=True, **given).ready().steps == steps


def test_what_a_command_line_gives_stays_even_if_it_is_the_default():
    def settings(*args):
        return cli._parse(["train", *args])[1].ready()

    usual = settings()
    assert (usual.dim, usual.learning_rate, usual.epochs) == (768, 0.2, 4)
    given = settings("--dim", "512", "--epochs", "6")
    assert (given.dim, given.epochs, given.learning_rate) == (512, 6, 0.2)
    assert settings("--dim", "768", "--quick").dim == 768
    assert settings("--quick").dim == settings("--quick", "--dataset", "folder").dim == 16
    assert settings("--dataset", "folder").dim == settings("--encoder", "relu").dim == 512
    assert cli._parse(["diagnose", "run", "--quick"])[1].ready().source == Path("run")  # which must be given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "got another file: Expecting"),
        ("[1]", r"got \[1\]"),
        ('{"rate": 0.5, "new_setting": 1}', "got new_setting too, .* update candax"),
        ('{"num_classes": "many"}', "got 'many' as num_classes, which is to be an integer"),
    ],
)
def test_settings_that_cannot_be_read_are_named(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"config.json: expected the settings of a run as JSON, {message}"):
        saved_settings(Mine, path)
    path.write_text('{"rate": 0.5, "out": "elsewhere"}')
    assert saved_settings(Mine, path, out=tmp_path) == Mine(rate=0.5, out=tmp_path)


def test_several_may_look_at_once_whether_a_folder_can_be_written(tmp_path):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(common.writable_folder, [tmp_path / "out"] * 400))
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_made_is_named_in_one_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    told = f"candax: error: expected --out to be a folder that can be written, got {out}: Not a directory."
    assert fails(capsys, "experiment", "css-figure1", "--quick", "--out", out) == told


@pytest.mark.parametrize(
    "settings",
    [
        SequencesSettings(methods=("full_softmax", "transformer"), sampler="uniform"),
        SequencesSettings(loss=None),
        LinksSettings(methods=("full_softmax",)),
        Train(sampler=None),
    ],
)
def test_settings_that_some_training_uses_are_taken(settings):
    assert type(settings.ready()) is type(settings)


def test_what_cannot_be_learned_or_measured_is_told():
    features = csr_array(np.array([[2.0, 0], [1, 3], [0, 0]], np.float32))
    train = cx.data.Examples(features, csr_array(np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], bool)))
    test = cx.data.Examples(features, csr_array(np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0]], bool)))
    dataset = cx.data.Dataset("made", train, test)
    assert setting.notes_on(dataset, tf_idf=True) == [
        "1 of 2 labels in test are in no training example: they count as missed",
        "1 of 3 training examples have no features: ranked by how frequent classes are",
        "1 of 3 test examples have no labels: left out of training and of figures",
        "1 of 3 test examples have no features: ranked by how frequent classes are",
    ]
    assert setting.notes_on(dataset, tf_idf=False)[-1] == "values of features look like counts: try --tf-idf"
    small = dataclasses.replace(train, features=(features / 7).astype(np.float32))
    assert "counts" not in setting.notes_on(dataclasses.replace(dataset, train=small), tf_idf=False)[-1]
