"""Face recognition, on generated identities: encoders that tell apart identities they were not trained on."""

from candax.recipes.faces.problem import Faces, Problem, make_pretrained, make_problem

__all__ = ["Faces", "Problem", "make_pretrained", "make_problem"]
