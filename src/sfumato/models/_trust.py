"""The gate for model code that is not part of sfumato.

A model outside the package is named `package.module:function`. Importing that module runs it, so
a name that comes from a file (a run folder, a weights file, a recipe) is resolved only if the user
has named the module too, in the same command or in the environment.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType

from torch import nn

from sfumato.errors import CodeError, UntrustedCodeError, UserError, nearest

VARIABLE = "SFUMATO_MODELS"
"""Environment variable: trusted modules, separated by commas."""


LIBRARIES = ("timm", "torchvision")
"""Packages whose registered models are named `timm:NAME` and need no trust where installed."""


GivenModel = nn.Module | Callable[..., nn.Module]
"""A model that the user has given as an object, or a function that makes it."""

Code = str | GivenModel
"""Model code that the user trusts: the name of a module or a model, or the model itself."""


@dataclass(frozen=True)
class Trust:
    """The model code that may be run while one file is read.

    Attributes:
        names: The names that the user gave: modules, each with all models that it defines, or
            single models as `package.module:function`.
        where: The file that names the model, for messages.
        folders: Run folders. No code is imported from inside them, trusted or not.
        marks: Names of files that only run folders hold. A folder with one of them counts as a
            run folder too.
        given: The model that the user has given as an object, if any.
    """

    names: tuple[str, ...] = ()
    where: str = "The recipe"
    folders: tuple[Path, ...] = ()
    marks: tuple[str, ...] = ()
    given: tuple[GivenModel, ...] = ()

    def __post_init__(self) -> None:
        for name in self.names:
            check_trusted(name)

    @property
    def code(self) -> tuple[Code, ...]:
        """Everything that the user trusts, by name and as objects."""
        return (*self.names, *self.given)

    def covers(self, name: str) -> bool:
        """Tell whether the user named this model or its module."""
        return self.names_in_full(name) or self.names_in_full(name.partition(":")[0])

    def names_in_full(self, name: str) -> bool:
        """Tell whether the user gave this exact name."""
        return name in (*self.names, *os.environ.get(VARIABLE, "").replace(" ", "").split(","))

    def run_folder_of(self, path: str) -> str | None:
        """The run folder that contains a file, or None.

        The path is checked with and without following links: a link into a run folder and a link
        inside one both belong to the run.
        """
        own = {form(str(folder)) for folder in self.folders for form in _FORMS}
        for form in _FORMS:
            place = Path(form(path))
            for folder in (place, *place.parents):
                if str(folder) in own or any((folder / mark).is_file() for mark in self.marks):
                    return str(folder)
        return None


_FORMS = (os.path.abspath, os.path.realpath)


def check_trusted(name: str) -> None:
    """Refuse a trusted name that is neither a module nor `package.module:function`.

    Raises:
        UserError: If it is something else, such as a path.
    """
    if not _is_module_name(name) and not is_model_name(name) and not is_library_name(name):
        raise UserError(
            f"--trust-code takes the name of a module, such as mypackage.net, not '{name}'."
        )


def is_model_name(text: str) -> bool:
    """Tell whether a text has the form `package.module:function`."""
    module, _, function = text.partition(":")
    return _is_module_name(module) and function.isidentifier()


def is_library_name(name: str) -> bool:
    """Tell whether a name has the form `timm:NAME` or `torchvision:NAME`."""
    return name.partition(":")[0] in LIBRARIES and ":" in name


def imported_library(name: str, trust: Trust | None) -> ModuleType:
    """Import the package of `timm:NAME` or `torchvision:NAME`.

    *Guarantee:* For a name from a file the package is one that the user named, or that is installed
    in this Python's site-packages, or that was imported before: never one that came with the file.

    Args:
        name: The model.
        trust: The code that a file may run; None for a name that the user has just typed.

    Raises:
        UserError: If the package is missing, is not installed as above, or cannot be imported.
    """
    package = name.partition(":")[0]
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise UserError(
                f"The model '{name}' is part of the package {package}, which is not installed: "
                f"pip install {package}"
            )
        if trust is not None and not trust.covers(name) and not _is_installed(spec):
            raise UntrustedCodeError(trust.where, name, variable=VARIABLE)
    with _outside_of_runs(trust):
        return _imported(name, trust)


def _is_installed(spec: ModuleSpec) -> bool:
    """Tell whether a module lies in this Python's site-packages."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return any(Path(spec.origin or "").is_relative_to(folder) for folder in folders)


def _is_module_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


@contextlib.contextmanager
def admitted(name: str, trust: Trust | None) -> Iterator[Callable[..., object]]:
    """The function or class that `package.module:function` names, within a `with` block.

    Guarantee: If the name comes from a file (`trust` is given), nothing is imported unless the user
    named its module or the model itself; neither that module nor one that it imports within the
    block is loaded from a run folder; and only a function that the module itself defines, or a
    subclass of `nn.Module`, is returned. A function that the module imported from another one is
    returned only if the user named this very model, module and function.

    Args:
        name: The model.
        trust: The code that a file may run; None for a name that the user has just typed.

    Raises:
        UserError: If the name is not admitted, cannot be imported, or is not a model.
    """
    if not is_model_name(name):
        _refuse_path(name)
        raise UserError(f"'{name}' does not name a model: write package.module:function.")
    if trust is not None and not trust.covers(name):
        raise UntrustedCodeError(trust.where, name, variable=VARIABLE)
    with _current_folder_last(), _outside_of_runs(trust):
        module = _imported(name, trust)
        yield _attribute(name, module, trust)


def _refuse_path(name: str) -> None:
    module_name, _, function = name.partition(":")
    if module_name.endswith(".py"):
        path = Path(module_name)
        inside = "" if path.parent == Path() else f", in the folder {path.parent}"
        raise UserError(
            f"'{name}' names a file, not a module: write {path.stem}:{function}{inside}."
        ) from None


def _imported(name: str, trust: Trust | None) -> ModuleType:
    module_name = name.partition(":")[0]
    try:
        module = importlib.import_module(module_name)
    except _InRunFolderError as error:
        raise CodeError(f"The model '{name}' is refused: {error}") from None
    except Exception as error:
        _refuse_path(name)
        raise UserError(
            f"The module '{module_name}' of the model '{name}' cannot be imported "
            f"({type(error).__name__}: {error}): run from the folder that holds it, or install it."
        ) from error
    parents = module_name.split(".")
    for count in range(1, len(parents) + 1):
        # A module imported before this block has not passed through our import hook.
        part = sys.modules.get(".".join(parents[:count]))
        if trust is not None and part is not None and part.__spec__ is not None:
            try:
                _refuse_run_folder(part.__spec__, trust)
            except _InRunFolderError as error:
                raise CodeError(f"The model '{name}' is refused: {error}") from None
    return module


def _attribute(name: str, module: ModuleType, trust: Trust | None) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(
            f"The module '{module_name}' has no function '{attribute}'.{nearest(attribute, public)}"
        )
    build = getattr(module, attribute)
    if isinstance(build, type) and issubclass(build, nn.Module):
        return build
    if type(build) is not FunctionType:
        kind = f"the class {build.__name__}" if isinstance(build, type) else type(build).__name__
        raise CodeError(
            f"'{name}' is {kind}, but must be a Python function that returns a torch.nn.Module, or "
            "a subclass of torch.nn.Module."
        )
    # `__module__` is an attribute that anybody can set; a function's globals are its module's.
    own = inspect.unwrap(build).__globals__ is vars(module)
    if trust is not None and not own and not trust.names_in_full(name):
        raise CodeError(
            f"{trust.where} names the model '{name}', a function that '{module_name}' only imports "
            "from another module. Functions that a trusted module defines itself may be used; for "
            f"this one name it in full: --trust-code {name}."
        )
    return build


class _InRunFolderError(ModuleNotFoundError):
    """A module that is inside a run folder."""


class _OutsideOfRuns(MetaPathFinder):
    """An import hook that finds no module itself, and refuses modules in run folders."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise for a module that another finder would load from a run folder; else return None."""
        for finder in sys.meta_path:
            if isinstance(finder, _OutsideOfRuns) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                _refuse_run_folder(spec, self._trust)
                return None
        return None


def _refuse_run_folder(spec: ModuleSpec, trust: Trust) -> None:
    places = [spec.origin] if spec.has_location else []
    for place in (*places, *(spec.submodule_search_locations or ())):
        if place and (folder := trust.run_folder_of(place)) is not None:
            raise _InRunFolderError(
                f"the module '{spec.name}' lies in the run folder {folder}, from which no code is "
                "imported. If it is your own, move it out of that folder.",
                name=spec.name,
            )


@contextlib.contextmanager
def _outside_of_runs(trust: Trust | None) -> Iterator[None]:
    if trust is None:
        yield
        return
    guard = _OutsideOfRuns(trust)
    sys.meta_path.insert(0, guard)
    try:
        yield
    finally:
        sys.meta_path.remove(guard)


@contextlib.contextmanager
def _current_folder_last() -> Iterator[None]:
    folder = os.getcwd()
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.append(folder)
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)
