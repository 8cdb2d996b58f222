"""Extraction of relation tuples (subject, relation, object) from source sentences, for factual relation augmentation.

* :mod:`.build` makes an extractor by its name, either from :mod:`.corenlp`, which talks to
  :mod:`.corenlp_server`, or from :mod:`.stanza_pipeline`;
* :mod:`.extractor` says what an extractor is, and extracts the tuples of rows of tokens;
* :mod:`.words` joins subwords to the words that are parsed, :mod:`.dependencies` reads tuples off dependency trees;
* :mod:`.corpus` reads the sentences of a data directory, :mod:`.shards` has them extracted, :mod:`.json_lines` reads
  and writes the tuples as text.
"""
