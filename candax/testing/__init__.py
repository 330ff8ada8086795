"""The laws of candax, for samplers and losses of one's own: ``check_sampler`` and ``check_loss``."""

from candax.testing.broken import LawBroken
from candax.testing.checking import check_loss, check_sampler
from candax.testing.loss_laws import LOSS_LAWS
from candax.testing.sampler_laws import SAMPLER_LAWS

__all__ = ["LOSS_LAWS", "SAMPLER_LAWS", "LawBroken", "check_loss", "check_sampler"]

# Tracebacks name it as users import it.
LawBroken.__module__ = __name__
