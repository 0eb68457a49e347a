"""Write the table of docs/guides/models.md: every causal class of transformers, tried out.

Run from the repository root: ``python -m tools.architectures``; a minute or two.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Final

import transformers

from testing.harness.architecture_walk import Finding, walk
from testing.harness.architectures import model_types

PAGE: Final = Path(__file__).parents[1] / "docs" / "guides" / "models.md"
BEGIN: Final = "<!-- begin -->\n"
END: Final = "<!-- end -->\n"
HEADER: Final = "| class | as target | as drafter | remark |\n|---|---|---|---|\n"


def version() -> str:
    """Return the line that says what the table was written with."""
    return f"transformers {transformers.__version__}."


def rows() -> dict[str, str]:
    """Return the rows of the page by class."""
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    return {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}


def write(findings: list[Finding]) -> None:
    """Replace the table of the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    served = sum(each.target.startswith("yes") for each in findings)
    said = f"{version()} {len(findings)} classes, {served} of them targets.\n\n"
    lines = [each.row() + "\n" for each in sorted(findings, key=lambda each: each.name.lower())]
    PAGE.write_text("".join([before, BEGIN, said, HEADER, *lines, END, after]))


def main() -> int:
    """Walk all classes and write the page."""
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    write([walk(model_type) for model_type in model_types()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
