"""`python -m isojax.launch`: the same as `isojax launch`."""

from isojax.cli.app import main_launch

if __name__ == "__main__":
    main_launch()
