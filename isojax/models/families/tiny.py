"""The quickstart's policy: the decoder at about 0.1M parameters, untied, from scratch."""

from isojax.models.families import family
from isojax.models.transformer import Decoder

build = family(Decoder)
