"""Checks of your own code against candax's laws: ``check_sampler``, ``check_retriever`` and ``check_loss``."""

from candax.testing.broken import LawBroken
from candax.testing.checking import check_loss, check_retriever, check_sampler
from candax.testing.loss_laws import LOSS_LAWS
from candax.testing.retriever_laws import RETRIEVER_LAWS
from candax.testing.sampler_laws import SAMPLER_LAWS

__all__ = [
    "LOSS_LAWS",
    "RETRIEVER_LAWS",
    "SAMPLER_LAWS",
    "LawBroken",
    "check_loss",
    "check_retriever",
    "check_sampler",
]

# So that tracebacks name it as users import it.
LawBroken.__module__ = __name__
