"""Face recognition, on generated identities: encoders that tell apart identities they were not trained on."""

from candax.recipes.faces.problem import Faces, Problem, make_problem
from candax.recipes.faces.warm_start import make_pretrained

__all__ = ["Faces", "Problem", "make_pretrained", "make_problem"]
