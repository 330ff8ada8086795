"""Which word comes next: an LSTM and a transformer over all words of a text, with sampled losses."""
