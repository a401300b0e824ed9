"""`python -m isojax.launch`: the same as `isojax launch`."""

from isojax.cli.start import main_module

if __name__ == "__main__":
    main_module("launch")
