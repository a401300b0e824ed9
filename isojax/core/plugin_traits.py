"""What a plug-in's decorator may be given, and which one to write above a function that has none.

A kind's traits are the fields of a dataclass, and these are the decorator's arguments.
"""

import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from types import ModuleType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from isojax.core.errors import InputError
from isojax.core.user_code import is_library_file


def check_traits(decorator: str, traits_type: type[Any], traits: Mapping[str, Any]) -> None:
    """InputError where a decorator's arguments do not fit the dataclass of its traits.

    decorator: its name, such as "loss", for messages.
    traits_type: a dataclass, whose fields are the arguments that the decorator takes.
    traits: the arguments as given, such as {"needs_group": True}. Each must be the name of a field
        and have its type, and none without a default may be missing.
    """
    types = get_type_hints(traits_type)
    for name, value in traits.items():
        if name not in types:
            nearest = difflib.get_close_matches(name, types, n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else ""
            expected = ", ".join(types) or "no argument"
            raise InputError(
                where=f"@{decorator}",
                found=f"has an argument {name!r}",
                expected=expected,
                fix=hint,
            )

        if not _is_of_type(value, types[name]):
            class_names = [option.__name__ for option in _classes(types[name])]
            expected = " or ".join(class_names).replace("NoneType", "None")
            raise InputError(
                where=f"@{decorator}",
                found=f"{name} = {repr(value)[:80]}",
                expected=expected,
            )

    missing = [name for name in _required_fields(traits_type) if name not in traits]
    if missing:
        raise InputError(
            where=f"@{decorator}",
            found=f"no argument {' and no '.join(missing)}",
            expected="every argument that has no default",
        )


def decorating_advice(
    decorator: str, package: str, traits_type: type[Any], module: ModuleType, names: Sequence[str]
) -> str:
    """What to write so that one of these functions of a module is decorated, for a message.

    Such as "Write `@loss` above line 3 (my_loss), and `from isojax.rl.losses import loss` at the
    head of the file"; "" where there is no such function.

    decorator: its name. package: what it is imported from, such as "isojax.rl.losses".
    traits_type: a dataclass of its arguments. module: the user's. names: of functions of the
    module, in their order.
    """
    # A function such as `reply` is an argument of the decorator, and not what it decorates.
    trait_functions = _function_traits(traits_type, module)
    functions = {name: vars(module)[name] for name in names if name not in trait_functions}
    # Of several, the one that has the decorator's name is meant.
    if decorator in functions:
        functions = {decorator: functions[decorator]}
    if not functions:
        return ""

    import_line = f"`from {package} import {decorator}`"
    # A file in isojax's folder of such plug-ins is to be one, as in a fork.
    is_in_folder = module.__name__.startswith(f"{package}.")
    if any(_is_elsewhere(function, module, is_in_folder) for function in functions.values()):
        name = next(iter(functions))
        function_import = f"`from {module.__name__} import {name}`"
        call = f"`my_{decorator} = {decorator}({name})`"
        return f"In a file of your own, write {function_import}, {import_line} and {call}"

    line = _decorator_line(decorator, traits_type, module, trait_functions)
    places = [f"line {first_line(function)} ({name})" for name, function in functions.items()]
    choice = ", whichever it is" if len(functions) > 1 else ""

    # An argument must be defined above the decorator that is given it.
    first = min(first_line(function) for function in functions.values())
    later = [name for name in trait_functions if first_line(vars(module)[name]) > first]
    order = f" (move it below {' and '.join(later)})" if later else ""

    where = f"{' or '.join(places)}{choice}{order}"
    return f"Write `{line}` above {where}, and {import_line} at the head of the file"


def _decorator_line(
    decorator: str, traits_type: type[Any], module: ModuleType, trait_functions: Sequence[str]
) -> str:
    """The decorator with the arguments that the module has, and `...` for others that it needs.

    Such as "@loss(needs_group=True, reply=reply, vocab=...)". trait_functions: the arguments for
    which the module has a function of that name.
    """
    arguments = _constant_traits(traits_type, module)
    arguments += [f"{name}={name}" for name in trait_functions]

    stated = [argument.partition("=")[0] for argument in arguments]
    arguments += [f"{name}=..." for name in _required_fields(traits_type) if name not in stated]
    return f"@{decorator}({', '.join(arguments)})" if arguments else f"@{decorator}"


def first_line(function: Any) -> int:
    """The line on which a function begins, its decorators included.

    0 of what is no function in Python.
    """
    code = _code(function)
    return code.co_firstlineno if code else 0


def _code(function: Any) -> Any:
    """The code object of a function, or of the one that it wraps; None where it has none."""
    if not callable(function):
        return None
    return getattr(inspect.unwrap(function), "__code__", None)


def _is_elsewhere(function: Callable[..., Any], module: ModuleType, is_in_folder: bool) -> bool:
    """Whether the user cannot decorate a function where it is defined.

    That is: in a library, or not in this module. `is_in_folder`: the module is a file of isojax's
    folder of plug-ins.
    """
    module_file = str(module.__file__)
    code = _code(function)
    if code is None or (is_library_file(module_file) and not is_in_folder):
        return True
    return os.path.realpath(code.co_filename) != os.path.realpath(module_file)


def _constant_traits(traits_type: type[Any], module: ModuleType) -> list[str]:
    """The arguments that a module's constants state.

    NEEDS_GROUP = True is "needs_group=True", and a dict of several traits, such as DEFAULTS of a
    loss, is "**DEFAULTS". A constant counts if it has the trait's name in capitals and its type; a
    dict, if its name is in capitals and all its keys are traits.
    """
    types = get_type_hints(traits_type)
    arguments: list[str] = []
    for name, annotation in types.items():
        value = vars(module).get(name.upper())
        if value is not None and _is_of_type(value, annotation):
            # A bool is written out; of another constant its name, as its text may be long.
            text = value if isinstance(value, bool) else name.upper()
            arguments.append(f"{name}={text}")

    for name, value in vars(module).items():
        is_constant_dict = name.isupper() and isinstance(value, dict) and value
        if is_constant_dict and value.keys() <= types.keys():
            arguments.append(f"**{name}")
    return arguments


def _function_traits(traits_type: type[Any], module: ModuleType) -> list[str]:
    """The traits of which a module has a function of this name, such as `reply`."""
    functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    types = get_type_hints(traits_type)
    return [
        name for name in types if name in functions and _is_of_type(functions[name], types[name])
    ]


def _required_fields(traits_type: type[Any]) -> list[str]:
    """The names of the fields that have no default."""
    return [
        f.name for f in fields(traits_type) if f.default is MISSING and f.default_factory is MISSING
    ]


def _classes(annotation: Any) -> list[type]:
    """The classes that an annotation allows: `int | None` -> int, NoneType; `list[str]` -> list."""
    options = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return [get_origin(option) or option for option in options]


def _is_of_type(value: Any, annotation: Any) -> bool:
    """Whether a value is what a field's annotation says, without a look at what it holds.

    `list[str]` is checked as `list`. An int passes for a float.
    """
    classes = _classes(annotation)
    if float in classes:
        classes.append(int)
    return isinstance(value, tuple(classes))
