"""Texts, one per line, and the words that are likeliest to come next."""

from collections import Counter
from collections.abc import Iterator

from candax.recipes.language.next_words import NextWords
from candax.recipes.predict.lines import Answer, Source, in_batches


def answers(found: NextWords, source: Source, k: int, notes: Counter[str]) -> Iterator[list[Answer]]:
    """The likeliest next words after each line, whose words white space separates, and their probabilities."""
    known = set(found.words)
    for batch in in_batches(text for _, text in source.texts()):
        texts = [text.split() for text in batch]
        if unknown := sum(word not in known for text in texts for word in text):
            notes["words that the run does not know, read as <unk> or left out"] += unknown
        answered = found.complete(texts, k)
        yield [Answer(" ".join(text), *of) for text, of in zip(texts, answered, strict=True)]
