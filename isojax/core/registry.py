"""Where the files of plug-ins are, how they are imported, and what the extras of isojax install."""

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from traceback import FrameSummary
from types import ModuleType

from isojax.core.errors import InputError
from isojax.core.user_code import describe_exception, own_frames

FOLDERS_VARIABLE = "ISOJAX_PLUGIN_FOLDERS"  # the processes that this one starts inherit it


def set_plugin_folders(folders: Sequence[str]) -> None:
    """Look files of plug-ins up in these folders, before the working directory.

    Here, and in processes started here, which inherit the environment.
    """
    os.environ[FOLDERS_VARIABLE] = os.pathsep.join(folders)
    # A file of a plug-in may import the other files of its folder.
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def plugin_folders() -> list[str]:
    """The folders in which a file of a plug-in is looked up, in their order, each once."""
    named_folders = os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)
    return list(dict.fromkeys([*filter(None, named_folders), os.getcwd()]))


def import_file(path: Path) -> ModuleType:
    """The module of a file, whose folder it may import from, as a script may."""
    sys.path.append(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # A name that ends in .py has a loader.
    module = importlib.util.module_from_spec(spec)

    # Dataclasses and pickles of the file look their module up by its name.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


_import_file_once = cache(import_file)


def _place(frame: FrameSummary) -> str:
    """Where a frame is, for a message: "rewards.py:12"."""
    return f"{Path(frame.filename).name}:{frame.lineno}"


def import_first(paths: Sequence[str | Path], label: str) -> ModuleType | None:
    """The first of some modules that exists; None where none does.

    paths: dotted names, which need not exist, and files, which must: such as ["isojax.rl.losses.x",
        Path("x.py")].
    label: what an InputError calls the plug-in that is looked for, such as "losses plug-in 'x'".

    InputError where one exists and cannot be imported.
    """
    for path in paths:
        try:
            if isinstance(path, Path):
                return _import_file_once(path)
            return importlib.import_module(path)
        except ModuleNotFoundError as e:
            # `e.name` is the module that is missing. Where that is `path` itself, or a package of
            # it (of "a.b.c" also "a" or "a.b"), the next one is tried; else it is one that the
            # module imports, and the user's to install.
            if e.name is None or not str(path).startswith(e.name):
                frames = own_frames(e)  # in the user's code, the innermost last
                place = f"{_place(frames[-1])} " if frames else ""
                raise InputError(
                    where=label,
                    found=f"{place}needs the module {e.name}, which is not there",
                    fix="Install its package, or correct its name.",
                ) from e
        except InputError as e:  # of a decorator, whose arguments are no traits
            frames = own_frames(e)  # in the user's code, the innermost last
            if frames:
                e = e.within(_place(frames[-1]))
            raise e.within(label) from e
        except (Exception, SystemExit) as e:  # whatever the user's own module raises
            raise InputError(
                where=label,
                found=f"cannot be imported: {describe_exception(e)}",
            ) from e
    return None


def import_extra(extra: str, purpose: str, *modules: str) -> ModuleType:
    """Import optional modules, and return the last.

    InputError where one cannot be imported names the `extra` of isojax that installs them, and the
    `purpose` that needs them.
    """
    try:
        for module in modules:
            __import__(module)
        return sys.modules[modules[-1]]
    except ImportError as e:
        raise InputError(
            where=purpose,
            found=f"needs the package {e.name}",
            fix=f'Type: pip install "isojax[{extra}]"',
        ) from e
    except Exception as e:
        # A package may need another version of one that is there, as protobuf's VersionError says.
        problem = f"cannot be imported ({type(e).__name__}: {e})"
        raise InputError(
            where=purpose,
            found=f"{modules[-1]} {problem}",
            fix=f'Type: pip install --upgrade "isojax[{extra}]"',
        ) from e


def file_names(folders: Sequence[str]) -> list[str]:
    """The names of the files in these folders of isojax, such as "rl.losses"; none is imported."""
    paths: list[str] = []
    for folder in folders:
        spec = importlib.util.find_spec(f"isojax.{folder}")
        if spec is not None:
            paths += spec.submodule_search_locations or ()
    return sorted(info.name for info in pkgutil.iter_modules(paths))
