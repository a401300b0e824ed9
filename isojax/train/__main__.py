"""`python -m isojax.train`: the same as `isojax train`."""

from isojax.cli.start import main_module

if __name__ == "__main__":
    main_module("train")
