"""`python -m isojax.train`: the same as `isojax train`."""

from isojax.cli.app import main_train

if __name__ == "__main__":
    main_train()
