"""Where the files of plug-ins lie, how they are imported, and the packages that an extra of isojax
installs."""

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from isojax.core.errors import InputError
from isojax.core.user_code import describe_exception, own_frames

FOLDERS_VARIABLE = "ISOJAX_PLUGIN_FOLDERS"  # the processes that this one starts inherit it


def set_plugin_folders(folders: Sequence[str]) -> None:
    """Look files of plug-ins up in these folders, before the working directory, here and in
    processes started here."""
    os.environ[FOLDERS_VARIABLE] = os.pathsep.join(folders)
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def plugin_folders() -> list[str]:
    """The folders in which a file of a plug-in is looked up, in their order."""
    return list(
        dict.fromkeys(
            [*filter(None, os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)), os.getcwd()]
        )
    )


def import_file(path: Path) -> ModuleType:
    """The module of a file, whose folder it may import from, as a script may."""
    sys.path.append(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a name that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    # dataclasses and pickles of the file look it up by name
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


_import_file_once = cache(import_file)


def import_first(paths: Sequence[str | Path], label: str) -> ModuleType | None:
    """The first of the modules that exists; InputError where one exists and cannot be imported.
    `label`: what an error calls the plug-in that is looked for."""
    for path in paths:
        try:
            return (
                _import_file_once(path) if isinstance(path, Path) else importlib.import_module(path)
            )
        except ModuleNotFoundError as e:
            if e.name is None or not str(path).startswith(e.name):
                raise InputError(f"{label} needs the module {e.name}, which is not there.") from e
        except InputError as e:  # of a decorator, whose arguments are no traits
            frames = own_frames(e)
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
            raise InputError(f"{label}: {place}{e}") from e
        except (Exception, SystemExit) as e:  # whatever the user's own module raises
            raise InputError(f"{label} cannot be imported: {describe_exception(e)}.") from e
    return None


def import_extra(extra: str, purpose: str, *modules: str) -> ModuleType:
    """The last of these modules; InputError where one cannot be imported names the extra that
    installs them."""
    try:
        return [__import__(module) and sys.modules[module] for module in modules][-1]
    except ImportError as e:
        raise InputError(
            f'{purpose} needs the package {e.name}; pip install "isojax[{extra}]".'
        ) from e
    except (
        Exception
    ) as e:  # a package beside another version of what it needs, such as protobuf's VersionError
        problem = f"cannot be imported ({type(e).__name__}: {e})"
        raise InputError(
            f'{purpose}: {modules[-1]} {problem}; pip install --upgrade "isojax[{extra}]".'
        ) from e


def file_names(folders: Sequence[str]) -> list[str]:
    """The names of the files in these folders, of which none is imported."""
    specs = [importlib.util.find_spec(f"isojax.{folder}") for folder in folders]
    paths = [
        path for spec in specs if spec is not None for path in spec.submodule_search_locations or ()
    ]
    return sorted(info.name for info in pkgutil.iter_modules(paths))
