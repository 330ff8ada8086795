"""The command line: `candax compare`, `train`, `evaluate`, `diagnose`, `word2vec` and others; see `candax --help`."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import tyro

from candax.experiments.ann_dataset import ANNDataset, ann_dataset
from candax.experiments.ann_profile import ANNProfile, ann_profile
from candax.experiments.ann_recall import ANNRecall, ann_recall
from candax.experiments.ann_scale import ANNScale, ann_scale
from candax.experiments.ann_tables import ANNTables, ann_tables
from candax.experiments.css_figure1 import Figure1, figure1
from candax.experiments.css_figure2a import Figure2a, figure2a
from candax.experiments.css_figure2b import Figure2b, figure2b
from candax.experiments.css_figure3 import Figure3, figure3
from candax.experiments.lns_figure3 import LNSFigure3, lns_figure3
from candax.experiments.lns_figure5 import Figure5, figure5
from candax.experiments.lns_staleness import LNSStaleness, lns_staleness
from candax.experiments.lns_sweeps import Sweeps, sweeps
from candax.experiments.lns_tables import Tables, tables
from candax.experiments.word2vec_questions import Word2VecQuestions, word2vec_questions
from candax.recipes.extreme.compare import Compare, compare
from candax.recipes.extreme.diagnose import Diagnose, diagnose
from candax.recipes.extreme.train import Evaluate, Train, evaluate, train
from candax.recipes.links.command import Links, links
from candax.recipes.retrieval.command import Retrieval, retrieval
from candax.recipes.words.command import Analogy, Neighbors, Word2Vec, analogy, neighbors, word2vec
from candax.training.saved import Export, export_command
from candax.training.stopping import Interrupted

_RUN: dict[type, Callable[[Any], Any]] = {
    Compare: compare,
    Train: train,
    Evaluate: evaluate,
    Diagnose: diagnose,
    Word2Vec: word2vec,
    Neighbors: neighbors,
    Analogy: analogy,
    Export: export_command,
    Figure1: figure1,
    Figure2a: figure2a,
    Figure2b: figure2b,
    Figure3: figure3,
    Tables: tables,
    Sweeps: sweeps,
    LNSFigure3: lns_figure3,
    Figure5: figure5,
    LNSStaleness: lns_staleness,
    Retrieval: retrieval,
    Links: links,
    Word2VecQuestions: word2vec_questions,
    ANNTables: ann_tables,
    ANNRecall: ann_recall,
    ANNScale: ann_scale,
    ANNProfile: ann_profile,
    ANNDataset: ann_dataset,
}

_AnyExperiment = (
    Annotated[Figure1, tyro.conf.subcommand("css-figure1")]
    | Annotated[Figure2a, tyro.conf.subcommand("css-figure2a")]
    | Annotated[Figure2b, tyro.conf.subcommand("css-figure2b")]
    | Annotated[Figure3, tyro.conf.subcommand("css-figure3")]
    | Annotated[Tables, tyro.conf.subcommand("lns-tables")]
    | Annotated[Sweeps, tyro.conf.subcommand("lns-sweeps")]
    | Annotated[LNSFigure3, tyro.conf.subcommand("lns-figure3")]
    | Annotated[Figure5, tyro.conf.subcommand("lns-figure5")]
    | Annotated[LNSStaleness, tyro.conf.subcommand("lns-staleness")]
    | Annotated[Retrieval, tyro.conf.subcommand("retrieval")]
    | Annotated[Links, tyro.conf.subcommand("links")]
    | Annotated[Word2VecQuestions, tyro.conf.subcommand("word2vec-questions")]
    | Annotated[ANNTables, tyro.conf.subcommand("ann-tables")]
    | Annotated[ANNRecall, tyro.conf.subcommand("ann-recall")]
    | Annotated[ANNScale, tyro.conf.subcommand("ann-scale")]
    | Annotated[ANNProfile, tyro.conf.subcommand("ann-profile")]
    | Annotated[ANNDataset, tyro.conf.subcommand("ann-dataset")]
)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Runs one experiment; each says what it must show in its module's first lines."""

    run: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[_AnyExperiment]]
    """Which."""


Command = (
    Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Diagnose, tyro.conf.subcommand("diagnose")]
    | Annotated[Word2Vec, tyro.conf.subcommand("word2vec")]
    | Annotated[Neighbors, tyro.conf.subcommand("neighbors")]
    | Annotated[Analogy, tyro.conf.subcommand("analogy")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Experiment, tyro.conf.subcommand("experiment")]
)


def main(args: list[str] | None = None) -> None:
    """Runs one command; what is wrong with arguments, data or folders ends in one line and exit status 2."""
    settings = _parse(args)
    if isinstance(settings, Experiment):
        settings = settings.run
    try:
        _RUN[type(settings)](settings)
    except (ValueError, OSError, FloatingPointError) as error:
        _fail(str(error))
    except Interrupted as asked:
        print(f"candax: {asked}", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("candax: interrupted", file=sys.stderr)
        sys.exit(130)


def _parse(args: list[str] | None) -> Any:
    """The settings from the arguments; tyro's boxes of many lines become one line."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(Command, prog="candax", description="Train models with huge output layers.", args=args)
    except SystemExit as end:
        if end.code in (0, None):
            raise
        # A box, with Unicode's lines or with hyphens: a title, a rule, the message, another rule, advice.
        lines = printed.getvalue().splitlines()
        rules = [i for i, line in enumerate(lines) if "──" in line or "---" in line]
        message = " ".join(line.strip("│ ") for line in lines[rules[0] + 1 : rules[1]])
        _fail(f"{message.removesuffix('.')}. See candax --help.")


def _fail(message: str) -> NoReturn:
    print(f"candax: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
