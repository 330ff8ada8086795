"""Settings of a command: their bounds are part of their types, and all are checked in one place."""

import contextlib
import dataclasses
import hashlib
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import tyro


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a number, or of each number of a tuple; infinite numbers are never within them."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether a value is within the bounds."""
        return math.isfinite(value) and value >= self.least and value > self.above and value <= self.most

    def __str__(self) -> str:
        lower = f"above {self.above:g}" if math.isfinite(self.above) else f"of {self.least:g} or more"
        return f"{lower} and at most {self.most:g}" if math.isfinite(self.most) else lower


Count = Annotated[int, Bounds(least=1)]
NonNegative = Annotated[int, Bounds(least=0)]
Positive = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(least=0)]
Share = Annotated[float, Bounds(above=0, most=1)]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]
S = TypeVar("S", bound="Settings")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of every study. A study's own settings are a subclass, whose ``QUICK`` holds the sizes for ``--quick``.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Mine(Settings):
        ...     num_classes: Count = 1000
        ...     QUICK = {"num_classes": 10}
        >>> Mine(quick=True).ready().num_classes, Mine(quick=True, num_classes=20).ready().num_classes
        (10, 20)
        >>> Mine(num_classes=0).ready()
        Traceback (most recent call last):
        ValueError: expected --num-classes of 1 or more, got 0.
    """

    quick: bool = False
    """Use small sizes that take seconds, to see that everything runs; sizes that are given explicitly stay."""
    seed: NonNegative = 0
    """Seed of everything that is drawn: initial values, batches and candidates."""
    out: Out = Path("runs")
    """Folder for results.json and the picture; by default one in runs/ with the study's name, for --quick another."""

    QUICK: ClassVar[Mapping[str, Any]] = {}
    # Other values that settings may have where they are not given, for some data or some methods.
    UNLESS_GIVEN: ClassVar[Sequence[Mapping[str, Any]]] = ()
    # Names of the settings that a model and its training depend on, where models are saved.
    OPTIONS: ClassVar[Sequence[str]] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The settings of ``OPTIONS``, by name."""
        return {name: getattr(self, name) for name in self.OPTIONS}

    @property
    def name(self) -> str:
        """The name of the study's module."""
        return type(self).__module__.rpartition(".")[2]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Notes which settings are given: the others may get other values than their defaults."""
        made = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        object.__setattr__(made, "_given", frozenset((*names[: len(args)], *kwargs)))
        return made

    def ready(self: S) -> S:
        """The settings to run with: those that are not given as is ``usual``, and all checked.

        Raises:
            ValueError: for settings out of range.
        """
        settings = self._but(self.usual())
        settings.check()
        return settings

    def usual(self) -> dict[str, Any]:
        """The values of settings that are not given, where they depend on others."""
        out: Path = type(self).out  # a default is an attribute of its class
        out = Path("runs") / self.name if out == Path("runs") else out
        # A quick look has a folder of its own: it must not take the place of a study of hours.
        return {"out": out.with_name(f"{out.name}_quick"), **self.QUICK} if self.quick else {"out": out}

    def unless_given(self: S, values: Mapping[str, Any]) -> S:
        """The settings with other values for those that are not given; the sizes of ``--quick`` stay."""
        sizes = self.QUICK if self.quick else {}
        return self._but({name: value for name, value in values.items() if name not in sizes})

    def _but(self: S, values: Mapping[str, Any]) -> S:
        given: frozenset[str] = vars(self)["_given"]
        found = dataclasses.replace(self, **{name: value for name, value in values.items() if name not in given})
        object.__setattr__(found, "_given", given)
        return found

    def parsed(self: S, parse: Callable[[S], S]) -> S:
        """The settings of a command line, which is to be parsed once more to see which of them it gives.

        Args:
            parse: parses it again, with other defaults.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        elsewhere = {"out": Path("runs") / "elsewhere"}
        others = {
            name: value
            for values in (*self.UNLESS_GIVEN, self.QUICK, elsewhere)
            for name, value in values.items()
            if value != defaults[name]
        }
        again = parse(dataclasses.replace(self, **others))
        unset = {
            name
            for name, value in others.items()
            if getattr(self, name) == defaults[name] and getattr(again, name) == value
        }
        object.__setattr__(self, "_given", frozenset(defaults) - unset)
        return self

    def check(self) -> None:
        """Raises ValueError for settings out of range; subclasses add conditions on several settings together."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            bounds = _bounds(hint)
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            if bounds is not None and not all(bounds.holds(each) for each in values):
                raise ValueError(f"expected {option(name)} {bounds}, got {value}.")

    def expect(self, holds: bool, what: str, *names: str) -> None:
        """Raises ValueError, saying what was expected and what the named settings are, unless the condition holds."""
        if not holds:
            got = " and ".join(f"{option(name)} {getattr(self, name)}" for name in names)
            raise ValueError(f"expected {what}, got {got}.")

    def expect_sampled(self, losses: Iterable[Any]) -> None:
        """Raises ValueError if a sampler or a loss is chosen where no training draws candidates.

        Args:
            losses: those of all trainings; None: the full softmax.
        """
        if any(loss is not None for loss in losses):
            return
        own = {field.name: field.default for field in dataclasses.fields(self)}
        for name in ("sampler", "loss"):
            why = "loss" if getattr(self, "loss", "") is None else "methods"
            unread = getattr(self, name) in (own[name], None)
            self.expect(unread, f"a training that draws candidates, for {option(name)}", name, why)


def option(name: str) -> str:
    """What a field is called on the command line."""
    return f"--{name.replace('_', '-')}"


def _bounds(hint: Any) -> Bounds | None:
    """The bounds in a type: of a number, of a number that may be None, or of each number of a tuple."""
    if get_origin(hint) is Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, Bounds)), None)
    return next((found for part in get_args(hint) if (found := _bounds(part)) is not None), None)


def model_folder(settings: Settings, name: str, seed: int, data: Any, *, without: Sequence[str]) -> Path:
    """Where the model of one method and seed is kept: one folder for each combination of what it depends on.

    Args:
        settings: of the command.
        name: of the method.
        seed: of the training.
        data: what the batches depend on, in place of the path of the data set.
        without: names of settings that the model does not depend on.
    """
    apart = {"seed", "out", "quick", "dataset", *without}
    told = {name: value for name, value in dataclasses.asdict(settings).items() if name not in apart}
    digest = hashlib.blake2b(repr((sorted(told.items()), data)).encode(), digest_size=4).hexdigest()
    return settings.out / "models" / f"{name}-{seed}-{digest}"


def writable_folder(path: Path) -> Path:
    """Creates a folder where missing, and raises now, not after training, if nothing can be written there.

    Raises:
        ValueError: if it is a file.
        OSError: if nothing can be written.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"expected --out to be a folder, got the file {path}.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        # One sentence, and so without the number and the name that the system's errors have.
        raise OSError(f"expected --out to be a folder that can be written, got {path}: {error.strerror}.") from error
    return path


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """As ``writable_folder``; what was created goes again if the block raises before anything is written there."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield writable_folder(path)
    except BaseException:
        with contextlib.suppress(OSError):  # not empty
            for folder in new:
                folder.rmdir()
        raise
