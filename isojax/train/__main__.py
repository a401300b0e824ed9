"""`python -m isojax.train`: the same as `isojax train`."""

from isojax.cli.app import TRAIN, main_module

if __name__ == "__main__":
    main_module(TRAIN)
