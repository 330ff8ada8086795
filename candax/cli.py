"""The command line: `candax compare`, `train`, `evaluate`, `diagnose`, `word2vec` and others; `candax` lists them."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Annotated, Any, NoReturn, Union

import tyro

from candax import overview

# As of a program that the signal for it ends.
_PIPE_CLOSED = 141
# Module, settings, function, and a line of help. Only the module of the command that is given is imported: help must
# not wait for JAX.
Commands = dict[str, tuple[str, str, str, str]]
COMMANDS: Commands = {
    "compare": (
        "candax.recipes.extreme.compare",
        "Compare",
        "compare",
        "Trains full softmax and pairs of a sampler and a loss on the same data; a table and a picture.",
    ),
    "train": ("candax.recipes.extreme.train", "Train", "train", "Trains one model, with checkpoints."),
    "evaluate": ("candax.recipes.extreme.train", "Evaluate", "evaluate", "Measures the newest checkpoint of a run."),
    "diagnose": (
        "candax.recipes.extreme.diagnose",
        "Diagnose",
        "diagnose",
        "Bias and variance of samplers and losses, on a run or on arrays in a file.",
    ),
    "advise": (
        "candax.recipes.extreme.advise",
        "Advise",
        "advise",
        "Which sampler, loss and optimizer suit one's own labels, by times on this machine.",
    ),
    "sequences": (
        "candax.recipes.sequences.command",
        "SequencesSettings",
        "sequences",
        "Which item comes next: a transformer over users' items in order, beside what needs no training.",
    ),
    "retrieve": (
        "candax.recipes.retrieval.command",
        "RetrieveSettings",
        "retrieve",
        "Which item a user takes next: two towers over all that was taken, beside what needs no training.",
    ),
    "links": (
        "candax.recipes.links.command",
        "LinksSettings",
        "links",
        "Which entity completes a triple: ComplEx and others, beside what needs no training.",
    ),
    "language": (
        "candax.recipes.language.command",
        "LanguageSettings",
        "language",
        "Which word comes next: an LSTM and a transformer over all words of a text, beside n-grams.",
    ),
    "word2vec": ("candax.recipes.words.command", "Word2Vec", "word2vec", "Trains word vectors on a text."),
    "neighbors": ("candax.recipes.words.command", "Neighbors", "neighbors", "The nearest words of a vector file."),
    "analogy": ("candax.recipes.words.command", "Analogy", "analogy", "a is to b as c is to which word?"),
    "predict": (
        "candax.recipes.predict.command",
        "Predict",
        "predict",
        "What a finished run says of new inputs: the best labels, items, entities or words.",
    ),
    "export": (
        "candax.recipes.predict.export",
        "Export",
        "export_command",
        "Writes class vectors, biases and ids of a run as safetensors, .npy and, if it is there, for faiss.",
    ),
}
EXPERIMENTS: Commands = {
    "css-figure1": ("candax.experiments.css_figure1", "Figure1", "figure1", "Estimates of one probability."),
    "css-figure2a": ("candax.experiments.css_figure2a", "Figure2a", "figure2a", "Softmax regression by ten methods."),
    "css-figure2b": ("candax.experiments.css_figure2b", "Figure2b", "figure2b", "The margin of the ranking loss."),
    "css-figure3": ("candax.experiments.css_figure3", "Figure3", "figure3", "A language model with a GRU."),
    "lns-tables": ("candax.experiments.lns_tables", "Tables", "tables", "Tables 2 and 3 and figure 4 of LNS."),
    "lns-sweeps": ("candax.experiments.lns_sweeps", "Sweeps", "sweeps", "Candidates, tables and hash functions."),
    "lns-figure3": ("candax.experiments.lns_figure3", "LNSFigure3", "lns_figure3", "What follows the model."),
    "lns-figure5": ("candax.experiments.lns_figure5", "Figure5", "figure5", "Data with flattened label frequencies."),
    "lns-staleness": ("candax.experiments.lns_staleness", "LNSStaleness", "lns_staleness", "How fast indices age."),
    "word2vec-questions": (
        "candax.experiments.word2vec_questions",
        "Word2VecQuestions",
        "word2vec_questions",
        "What k, the noise, hard negatives and corrections change in word vectors.",
    ),
    "race": (
        "candax.experiments.race",
        "Race",
        "race",
        "How soon each sampler and loss is nearly as good as the full softmax, all tuned alike.",
    ),
    "race-gap": (
        "candax.experiments.race_gap",
        "Gap",
        "gap",
        "What a sampled loss lacks of the full softmax: candidates, or the right end.",
    ),
    "ann-tables": ("candax.experiments.ann_tables", "ANNTables", "ann_tables", "Tables 3 and 4 of ANN Softmax."),
    "ann-recall": ("candax.experiments.ann_recall", "ANNRecall", "ann_recall", "What retrieval finds, and accuracy."),
    "ann-scale": ("candax.experiments.ann_scale", "ANNScale", "ann_scale", "Accuracy and time as classes grow."),
    "ann-profile": ("candax.experiments.ann_profile", "ANNProfile", "ann_profile", "Where the time of a step goes."),
    "ann-dataset": ("candax.experiments.ann_dataset", "ANNDataset", "ann_dataset", "ANN Softmax on a data set."),
}


def main(args: list[str] | None = None) -> None:
    """Runs one command; what is wrong with arguments, data or folders ends in one line and exit status 2."""
    if sys.stderr is None:  # after a shell's 2>&-; what is printed there would go to standard output instead
        with open(os.devnull, "w", errors="replace") as nowhere, contextlib.redirect_stderr(nowhere):
            main(args)
        return
    try:
        try:
            with _stopping():
                _main(list(sys.argv[1:] if args is None else args))
        finally:
            print(end="", flush=True)  # also where a shell's >&- leaves no standard output
    except BrokenPipeError:
        # Who reads has enough, as ``head`` does: no error, and Python must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PIPE_CLOSED)
    except KeyboardInterrupt as asked:
        # Of ``fit`` it says where the run was saved and how to go on.
        print(f"candax: {str(asked) or 'interrupted'}", file=sys.stderr)
        sys.exit(130)


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, with a word on what is saved."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt("stopped by SIGTERM")

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _main(args: list[str]) -> None:
    if args == ["--version"]:
        print(f"candax {importlib.metadata.version('candax')}")
        return
    if not args:
        overview.show_overview([*COMMANDS, "experiment"], {name: line for name, (*_, line) in COMMANDS.items()})
        return
    if args == ["experiment"]:
        overview.show_studies({name: line for name, (*_, line) in EXPERIMENTS.items()})
        return
    function, settings = _parse(args)
    try:
        function(settings)
        overview.show_next(args[0], settings)
    except BrokenPipeError:
        raise
    except OSError as error:
        _fail(_in_words(error))
    except (ValueError, FloatingPointError) as error:
        _fail(str(error))


# What the system says in a few words, for errors that say no more than that.
_SYSTEM = {
    FileNotFoundError: "there is no file or folder",
    IsADirectoryError: "expected a file, got the folder",
    NotADirectoryError: "expected a folder, got something else at",
}


def _in_words(error: OSError) -> str:
    """The error as one sentence."""
    words = _SYSTEM.get(type(error))
    if words is None or error.filename is None or error.errno is None or error.strerror != os.strerror(error.errno):
        return str(error)
    return f"{words} {error.filename}."


def _parse(args: list[str]) -> tuple[Callable[[Any], Any], Any]:
    """The function of the command, and its settings."""
    program, commands = "candax", COMMANDS
    if args[:1] == ["experiment"]:
        program, commands, args = "candax experiment", EXPERIMENTS, args[1:]
    if args and not args[0].startswith("-") and args[0] not in commands:
        known = [*commands, *(["experiment"] if commands is COMMANDS else [])]
        _fail(f"expected one of {', '.join(known)}, got {args[0]!r}. See {program} --help.")
    if args[:1] and args[0].startswith("--tyro-"):
        # Completion for a shell knows the options of every command too, which takes an import of each.
        _cli(_all(), program, args)
    if not args or args[0] not in commands:
        # Help, or an error that names the commands.
        _cli(_names(commands), program, args)
        _fail(f"expected a command, got none. See {program} --help.")
    module, settings, function, _ = commands[args[0]]
    room = importlib.import_module(module)
    return getattr(room, function), _cli(getattr(room, settings), f"{program} {args[0]}", args[1:])


def _names(commands: Commands) -> Any:
    """A type of subcommands without options, for the list of them."""
    helps = {name: help_line for name, (*_, help_line) in commands.items()}
    if commands is COMMANDS:
        helps["experiment"] = "Runs one experiment of a paper: candax experiment --help lists them."
    return _union(
        (name, dataclasses.make_dataclass(name.title().replace("-", ""), []), line) for name, line in helps.items()
    )


def _union(commands: Iterable[tuple[str, Any, str]]) -> Any:
    """A type of subcommands, each with a name, a type of its options and a line of help."""
    made = [Annotated[options, tyro.conf.subcommand(name, description=line)] for name, options, line in commands]
    return Union[tuple(made)]  # noqa: UP007


def _all() -> Any:
    """A type of all commands with their options, experiments as one of them."""

    def options(commands: Commands) -> list[tuple[str, Any, str]]:
        return [
            (name, getattr(importlib.import_module(module), settings), line)
            for name, (module, settings, _, line) in commands.items()
        ]

    study = dataclasses.make_dataclass("Experiment", [("study", _union(options(EXPERIMENTS)))])
    every = _union([*options(COMMANDS), ("experiment", study, "Runs one experiment of a paper.")])
    # As they are typed: `candax experiment css-figure1 --seed 1`.
    without_names: Any = tyro.conf.OmitSubcommandPrefixes
    without_paths: Any = tyro.conf.OmitArgPrefixes
    return without_names[without_paths[every]]


def _cli(settings: Any, program: str, args: list[str]) -> Any:
    """The settings from the arguments; tyro's boxes of many lines become one line, and NO_COLOR is respected."""
    printed, help_text = io.StringIO(), io.StringIO()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(printed))
            if sys.stdout is None or os.environ.get("NO_COLOR"):  # tyro asks only whether it is a terminal
                stack.enter_context(contextlib.redirect_stdout(help_text))
            about = "Train models with huge output layers." if program == "candax" else None
            parse = functools.partial(tyro.cli, settings, prog=program, description=about, args=args)
            found = parse()
            return found.parsed(lambda defaults: parse(default=defaults)) if hasattr(found, "parsed") else found
    except SystemExit as end:
        print(help_text.getvalue(), end="")
        if end.code in (0, None):
            raise
        # A box, with Unicode's lines or with hyphens: a title, a rule, the message, another rule, advice.
        lines = printed.getvalue().splitlines()
        rules = [i for i, line in enumerate(lines) if "──" in line or "---" in line]
        message = " ".join(line.strip("│ ") for line in lines[rules[0] + 1 : rules[1]])
        for said, ours in _NUMBERS.items():
            message = re.sub(said, ours, message)
        _fail(f"{message.removesuffix('.')}. See {program} --help.")


# What tyro says of a word in place of a number, with Python's names of types, and what stands there instead.
_NUMBERS = {
    r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)": r"expected a whole number for \1, got \2",
    r"Error parsing (\S+): could not convert string to float: (.*)": r"expected a number for \1, got \2",
    r"Error parsing (\S+): no type matching \{None\}\|INT could be instantiated from \[(.*?)\].*": (
        r"expected a whole number or None for \1, got \2"
    ),
}


def _fail(message: str) -> NoReturn:
    print(f"candax: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
