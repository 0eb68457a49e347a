"""Imported once, by the process that the ranks of the tests are forked from."""

import torch  # noqa: F401
import transformers  # noqa: F401

from draftwire.engines.ranks import answering, columns, group, links, verifying  # noqa: F401
from draftwire.kernels.prepare import prepare
from draftwire.kernels.shards_emulator import emulate
from tests.engines.rank_rows import sharded_rows

prepare()
emulate([sharded_rows(rank, 2) for rank in range(2)])  # loads the loops of shards
