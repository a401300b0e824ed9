"""Plug-ins: functions that a decorator marks as one of a kind, with their traits as its arguments.

    # in isojax/rl/advantages/__init__.py
    advantage = PluginKind("advantage", "rl.advantages", AdvantageTraits)

    # in isojax/rl/advantages/group.py, or in a file of a user's
    @advantage(needs_group=True)
    def group(batch): ...

    plugin = advantage.load("group")  # as `cell.rl.advantage` names it
    plugin.traits.needs_group, plugin(batch)

There is no table of them: a name leads to a module, which has one plug-in of the kind.
"""

import difflib
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.plugin_traits import check_traits, decorating_advice, first_line
from isojax.core.user_code import note_plugin_file

P = ParamSpec("P")
R = TypeVar("R")
Traits = TypeVar("Traits")

_OWN_PREFIX = "isojax."


@dataclass(frozen=True)
class NoTraits:
    """Of a kind whose plug-ins differ in nothing but their functions."""


@dataclass(frozen=True)
class Plugin(Generic[P, R, Traits]):
    """A decorated function, which is called as the function itself."""

    function: Callable[P, R]
    traits: Traits
    kind: "PluginKind[Traits]"
    name: str  # as a config gives it: the file's of isojax's own, the module's path of a user's
    module: str  # where it was decorated
    file: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns; InputError where it does not take these arguments."""
        try:
            return self.function(*args, **kwargs)
        except TypeError as e:
            # Of an error inside of the function, the traceback has a frame of it.
            is_in_function = e.__traceback__ is not None and e.__traceback__.tb_next is not None
            if is_in_function:
                raise
            raise InputError(
                where=self.place,
                found=str(e),
                expected=f"a function with the arguments of a plug-in with @{self.kind.name}",
                fix="They are in docs/extending.md.",
            ) from e

    @property
    def place(self) -> str:
        """For messages: the file, and the line where its function begins."""
        line = first_line(self.function)
        return f"{self.file}:{line}" if line else self.file

    @property
    def is_own(self) -> bool:
        """Whether it is one of isojax's."""
        return self.module.startswith(_OWN_PREFIX)


@dataclass(frozen=True)
class PluginKind(Generic[Traits]):
    """What plug-ins have in common that one setting names. Called, it is their decorator."""

    name: str  # the decorator's
    folder: str  # of isojax's own plug-ins, whose package has the decorator: "rl.advantages"
    traits_type: type[Traits]  # a dataclass, whose fields the decorator takes as arguments

    @property
    def package(self) -> str:
        """What the decorator is imported from."""
        return f"{_OWN_PREFIX}{self.folder}"

    @overload
    def __call__(self, function: Callable[P, R], /) -> Plugin[P, R, Traits]: ...

    @overload
    def __call__(self, /, **traits: Any) -> Callable[[Callable[P, R]], Plugin[P, R, Traits]]: ...

    def __call__(self, function: Callable[..., Any] | None = None, /, **traits: Any) -> Any:
        """`@advantage`, or `@advantage(needs_group=True)`.

        InputError where its arguments are no traits of the kind.
        """
        # A plug-in is of the module that writes the decorator, also where its function is
        # imported from a library: the caller's, whose globals are those of one frame further up.
        frame = inspect.currentframe()
        assert frame is not None and frame.f_back is not None
        scope = frame.f_back.f_globals
        module = scope["__name__"]
        name = module.rpartition(".")[2] if module.startswith(_OWN_PREFIX) else module

        check_traits(self.name, self.traits_type, traits)
        checked_traits = self.traits_type(**traits)

        def decorate(function: Callable[P, R]) -> Plugin[P, R, Traits]:
            if not callable(function):
                raise InputError(
                    where=f"@{self.name}",
                    found=f"above a {type(function).__name__}",
                    expected="a function",
                )
            if isinstance(function, Plugin):  # another plug-in's function, with traits of its own
                function = function.function
            return Plugin(function, checked_traits, self, name, module, scope.get("__file__", ""))

        return decorate if function is None else decorate(function)

    def load(self, name: str) -> Plugin[..., Any, Traits]:
        """The plug-in that a config names; InputError as `load_plugin`."""
        return load_plugin([self], name)

    def names(self) -> list[str]:
        """The names of isojax's own, of which none is imported."""
        return registry.file_names([self.folder])

    def load_own(self) -> list[Plugin[..., Any, Traits]]:
        """Every one of isojax's own, whatever the user's files are called."""
        return [_find_plugin([self], name, user_files=[]) for name in self.names()]


def load_plugin(kinds: Sequence[PluginKind[Any]], name: str) -> Plugin[..., Any, Any]:
    """The plug-in `name` of one of these kinds.

    That is the plug-in in the file of this name in isojax's folders, the config's or the working
    directory; or in the module of a dotted path, which may also name a function in a module.
    InputError where there is none, with the known names, or where the module has several, or its
    function lacks the decorator.

    kinds: those that one setting names, most often one; of `cell.task` two, tasks and sources.
    """
    user_files: list[Path] = []
    if re.fullmatch(r"[\w-]+", name):
        user_files = [Path(folder, f"{name}.py") for folder in registry.plugin_folders()]
    plugin = _find_plugin(kinds, name, user_files)
    if not plugin.is_own:
        note_plugin_file(plugin.file)  # An error in it is from now on the user's to correct.
    else:
        for file in user_files:
            refuse_own_name(plugin, file)
    return plugin


def refuse_own_name(own: Plugin[..., Any, Any], file: Path) -> None:
    """InputError where a user's file has a plug-in of the kind and the name of isojax's `own`.

    One of them would be ignored. The file is read, not run.
    """
    if not os.path.isfile(file) or os.path.samefile(file, own.file):
        return
    try:
        text = file.read_text(errors="replace")
    except OSError:  # a file that this user may not read is none that is meant
        return
    if re.search(rf"^@{own.kind.name}\b", text, re.MULTILINE) is None:
        return
    raise InputError(
        where=file,
        found=f"has @{own.kind.name} and the name of isojax's own, {own.file}",
        expected="another name",
        fix=f"Rename the file, for example to my_{file.name}, and use it as my_{own.name}.",
    )


def _find_plugin(
    kinds: Sequence[PluginKind[Any]], name: str, user_files: Sequence[Path]
) -> Plugin[..., Any, Any]:
    """As `load_plugin`. `user_files`: where a file of the user's may be, if it is there."""
    kind = kinds[-1]  # Of several, messages speak of the last.
    label = f"{kind.folder.rpartition('.')[2]} plug-in {name!r}"

    # "group" is a plain name; of "my_fork.rewards" the parent is "my_fork". What is neither plain
    # nor dotted is looked for nowhere: `..` would lead out of the folders.
    is_dotted_name = re.fullmatch(r"[\w-]+(\.[\w-]+)*", name) is not None
    parent, _, attribute = name.rpartition(".") if is_dotted_name else ("", "", "")
    is_plain_name = is_dotted_name and not parent

    places: list[str | Path] = []  # modules and files, of which the first that is there counts
    if is_plain_name:
        places += [f"{kind.package}.{name}" for kind in kinds]
        places += [file for file in user_files if os.path.isfile(file)]
    elif parent:
        places.append(name)

    module = registry.import_first(places, label)
    if module is not None:
        plugin = _only_plugin(module, kinds, label)
        if plugin is not None:
            return plugin
        # An InputError each, where the module shows what was meant; else the last one below.
        _refuse_other_kinds(label, kind, module)
        _refuse_undecorated(label, kinds, module, _plain_functions(module))
        missing = f"the module {module.__name__} has no function with the decorator @{kind.name}"
        raise InputError(
            where=label,
            found=missing,
            expected=_describe_known(kinds, user_files),
            fix=_suggest_known(kinds, name),
        )

    # The last word of a dotted path may be a function of the module before it.
    parent_module = registry.import_first([parent], label) if parent else None
    missing = "no such module"
    if parent_module is not None:
        value = vars(parent_module).get(attribute)
        if isinstance(value, Plugin) and value.kind in kinds:
            return replace(value, name=name)
        _refuse_undecorated(label, kinds, parent_module, [attribute] if callable(value) else [])
        missing = f"the module {parent} has no function and no submodule {attribute!r}"
    raise InputError(
        where=label,
        found=missing,
        expected=_describe_known(kinds, user_files),
        fix=_suggest_known(kinds, name),
    )


def _only_plugin(
    module: ModuleType, kinds: Sequence[PluginKind[Any]], label: str
) -> Plugin[..., Any, Any] | None:
    """The one plug-in of these kinds that a module has; None where it has none.

    InputError where it has several.
    """
    plugins = _plugins_in(module, kinds)
    if len(plugins) > 1:
        paths = " or ".join(f"{module.__name__}.{name}" for name in plugins)
        raise InputError(
            where=label,
            found=f"{module.__file__} has {len(plugins)} plug-ins of this kind",
            fix=f"Name one: {paths}.",
        )
    return next(iter(plugins.values()), None)


def _describe_known(kinds: Sequence[PluginKind[Any]], user_files: Sequence[Path]) -> str:
    """What is expected in the place of a name that means nothing.

    `user_files`: where a file of the user's was looked for.
    """
    known_names = sorted(known for kind in kinds for known in kind.names())
    looked_up = f", a file of your own ({', '.join(map(str, user_files))})" if user_files else ""
    known = f"one of {', '.join(known_names)}{looked_up}"
    return f"{known}, or the module path of your own, as my_fork.NAME"


def _suggest_known(kinds: Sequence[PluginKind[Any]], name: str) -> str:
    """Which known name is alike; "" where none is."""
    names = {known for kind in kinds for known in kind.names()}
    for folder in registry.plugin_folders():
        names |= {file.stem for file in Path(folder).glob("*.py")}
    suggestions = difflib.get_close_matches(name, names - {name}, n=1)
    return f"Did you mean {suggestions[0]!r}?" if suggestions else ""


def _plugins_in(
    module: ModuleType, kinds: Sequence[PluginKind[Any]]
) -> dict[str, Plugin[..., Any, Any]]:
    """The plug-ins of these kinds that a module defines, by name.

    Of a module that defines none, those that it imports.
    """
    all_plugins = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Plugin) and value.kind in kinds
    }
    defined = {
        name: plugin for name, plugin in all_plugins.items() if plugin.module == module.__name__
    }

    # A plug-in that a module has under several names counts once, under the first of them.
    plugins: dict[str, Plugin[..., Any, Any]] = {}
    seen: set[int] = set()
    for name, plugin in (defined or all_plugins).items():
        if id(plugin) not in seen:
            seen.add(id(plugin))
            plugins[name] = plugin
    return plugins


def _plain_functions(module: ModuleType) -> list[str]:
    """The names of the functions that a module defines and that are no plug-ins."""
    names = []
    for name, value in vars(module).items():
        is_public = not name.startswith("_")
        is_defined_here = getattr(value, "__module__", None) == module.__name__
        if is_public and is_defined_here and not isinstance(value, Plugin) and first_line(value):
            names.append(name)
    return names


def _refuse_other_kinds(label: str, kind: PluginKind[Any], module: ModuleType) -> None:
    """InputError where a module has plug-ins, but of other kinds than the wanted one."""
    for name, value in vars(module).items():
        if isinstance(value, Plugin) and value.module == module.__name__:
            raise InputError(
                where=label,
                found=f"{name} in {module.__file__} has the decorator @{value.kind.name}",
                expected=f"a function with @{kind.name} (docs/extending.md)",
            )


def _refuse_undecorated(
    label: str, kinds: Sequence[PluginKind[Any]], module: ModuleType, names: Sequence[str]
) -> None:
    """InputError that says what to write above which line, where a decorator would be enough.

    kinds: as of `load_plugin`; the advice is of the last, and mentions the others' decorators.
    names: of the functions of the module that may be meant; nothing is refused where there is none.
    """
    *other_kinds, kind = kinds
    advice = decorating_advice(kind.name, kind.package, kind.traits_type, module, names)
    if advice:
        others = "".join(
            f", or, where it is one, @{other.name} of {other.package}" for other in other_kinds
        )
        raise InputError(
            where=label,
            found=f"{module.__file__} has no function with the decorator @{kind.name}",
            fix=f"{advice}{others} (docs/extending.md).",
        )
