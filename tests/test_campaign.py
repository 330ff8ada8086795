"""The campaign in short; and faults that are planted, which it must find."""

import functools
import operator
import pickle
import subprocess
import sys
from types import ModuleType

import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax import files
from candax.data import vector_files, xml_repository
from tests.campaign import calls, devices, disk, fuzz, kill, made, types
from tests.campaign.parts import PARTS
from tests.campaign.runs import Place
from tests.campaign.trials import BadError, Part, run, run_one


def test_nothing_bad_in_a_few_trials():
    found = run(fuzz.PART, 0, seconds=0, at_least=400)
    assert found.bad == []
    assert found.trials == 400


def test_a_killed_run_is_not_bad():
    part = Part(kill.trial, 300.0, kinds=["log_uniform"])
    assert run(part, 0, seconds=0).bad == []


def bad(name="fuzz", trials=400):
    """Why trials were bad, those with some format alone."""
    return "\n".join(why for _, why in run(PARTS[name], 0, seconds=0, at_least=trials).bad)


def test_a_digest_that_nobody_compares_is_found(monkeypatch):
    monkeypatch.setattr(files, "_digest", lambda kind, text, arrays: "same")
    fuzz._whole.cache_clear()
    assert "arrays.safetensors by" in bad()
    fuzz._whole.cache_clear()


def test_a_loader_that_drops_a_line_is_found(monkeypatch):
    read = vector_files._read_text

    number = next(number for number, of in enumerate(fuzz.FORMATS) if of.name == "vectors.txt")
    whole, _ = fuzz._whole(number)

    def dropping(path):
        words, vectors = read(path)
        return (words, vectors) if path.read_bytes() == whole else (words[:-1], vectors[:-1])

    monkeypatch.setattr(vector_files, "_read_text", dropping)
    assert "vectors.txt by" in bad(trials=1000)


def test_an_error_that_is_swallowed_is_found(monkeypatch):
    module = sys.modules[xml_repository.__module__]
    parse = module.parse_block

    def lenient(text, *args):
        try:
            return parse(text, *args)
        except ValueError:
            return parse(b"0 0:1\n" * max(1, text.count(b"\n")), *args)

    monkeypatch.setattr(module, "parse_block", lenient)
    assert "it loads, and should not" in bad()


@pytest.mark.parametrize("fault", ["skips a batch", "torn checkpoint"])
def test_a_resumed_run_that_does_otherwise_is_found(fault, tmp_path):
    process = kill.start(fault, tmp_path)
    kill.wait_for(process, tmp_path, "checkpoints/8")
    process.kill()
    process.join()
    with pytest.raises(BadError, match="are not as without"):
        kill.finish(fault, tmp_path, 1)


def test_a_full_disk_is_not_bad_unless_it_is_passed_over():
    def part(kind):
        return Part(functools.partial(disk.trial, kinds=[kind], faults=["full disk"]), 300.0)

    assert run(part("cache"), 0, seconds=0).bad == []
    found = run(part("swallowed error"), 0, seconds=0)
    assert "are not as without" in found.bad[0][1]


def test_other_devices_are_not_bad_unless_they_come_to_something_else():
    def part(name, *places):
        return Part(functools.partial(devices.trial, name=name, places=places), 300.0)

    assert run(part("spread", Place(2), Place(2, processes=2)), 0, seconds=0).bad == []
    found = run(part("counts devices", Place(3)), 0, seconds=0)
    assert "are not as on one" in found.bad[0][1]


def test_wrong_arguments_are_refused():
    found = run(types.PART, 0, seconds=0, at_least=200)
    assert found.bad == []


def test_a_function_that_does_not_look_at_its_argument_is_found(monkeypatch):
    monkeypatch.setattr(types, "NAMES", ["unchecked"])
    monkeypatch.setitem(calls.GOOD, "unchecked", made.of(lambda num_sampled: np.ones(num_sampled), num_sampled=4))
    found = bad("types", trials=30)
    assert "unchecked(num_sampled=a list): list for a number, and it is taken" in found
    assert "unchecked(num_sampled=an object): TypeError from" in found


def test_every_public_name_has_a_good_call_or_a_reason():
    rooms = {
        f"{name}.": operator.attrgetter(name)(cx)
        for name in (
            *("samplers", "losses", "models", "rows", "data", "training", "diagnostics", "testing"),
            *("recipes", "recipes.words", "recipes.links", "recipes.retrieval"),
        )
    }
    called = {name.split(",")[0] for name in calls.GOOD} | set(calls.EXEMPT)
    for prefix, room in ({"": cx} | rooms).items():
        names = {prefix + name for name in room.__all__ if not isinstance(getattr(room, name), ModuleType)}
        assert not {name for name in names - called if callable(operator.attrgetter(name)(cx))}


@pytest.mark.parametrize("name", calls.GOOD)
def test_a_good_call_is_one(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    function, good = calls.GOOD[name](tmp_path)
    made.call(function, good)


def test_what_hangs_or_breaks_is_bad(tmp_path):
    def hangs(rng, folder):
        while True:
            pass

    def breaks(rng, folder):
        raise KeyError("x")

    assert run_one(Part(hangs, 0.1), 0, 0) == (["bad"], "it took more than 0.1 s")
    assert "KeyError" in run_one(Part(breaks, 1.0), 0, 0)[1]
    assert run_one(Part(lambda rng, folder: str(rng.integers(9)), 1.0), 3, 4)[1] is None


def test_the_command_says_how_many_trials_there_were():
    found = subprocess.run(
        [sys.executable, "-m", "tests.campaign", "--part", "fuzz", "--minutes", "0.001", "--seed", "5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.strip().splitlines()[-1].startswith("fuzz: ")


def test_nothing_that_is_read_is_unpickled(tmp_path):
    seen, on = [], [True]

    def hook(event, arguments):
        if on[0] and event == "pickle.find_class":
            seen.append(arguments)

    sys.addaudithook(hook)
    try:
        for of in fuzz.FORMATS:
            path = tmp_path / of.name
            of.write(path)
            of.load(path)
        fit_and_load(tmp_path / "run")
        assert seen == []
        pickle.loads(pickle.dumps(fuzz.Format))
        assert seen  # the hook hears
    finally:
        on[0] = False


def fit_and_load(folder):
    def make():
        head = cx.Head(20, 4, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0))
        return head, cx.Optimizer(head, optax.sgd(0.1))

    def loss(head, batch):
        return head.loss(batch, np.zeros(2, np.int32))

    cx.training.fit(*make(), [np.ones((2, 4), np.float32)], num_steps=1, loss_fn=loss, folder=folder, progress=False)
    cx.training.load(folder, make)
    cx.training.export(folder, folder / "out")
