"""Imported once, by the process that the ranks of the tests are forked from."""

import torch  # noqa: F401
import transformers  # noqa: F401

from draftwire.kernels.shards.emulator import emulate
from draftwire.rows.prepare import prepare
from tests.engines.rank_rows import sharded_rows

prepare()
emulate([sharded_rows(rank, 2) for rank in range(2)])  # loads the loops of shards
