"""The arithmetic over vocabulary shards: counts, draws and verdicts equal to the whole row's."""
