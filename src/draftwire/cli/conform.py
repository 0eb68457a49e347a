"""``draftwire conform``: check vectors against this implementation, or say which it fails."""

from __future__ import annotations

from pathlib import Path

import click

from draftwire.errors import ExitCode


@click.command(
    epilog="""\b
Examples:
  draftwire conform spec/vectors/*.jsonl
  draftwire conform --quiet spec/vectors/frames.jsonl
"""
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--quiet", "-q", is_flag=True, help="Print failures and the last line only.")
def conform(files: tuple[Path, ...], quiet: bool) -> ExitCode:
    """Check vectors (JSON lines) against this implementation.

    FILE is a vector file as described in spec/conformance.md. Each vector is checked against the
    plain-integer arithmetic, and against the kernels, the wire and the sessions where it concerns
    them. An implementation in another language is checked by the same files.
    They come with a checkout: the examples work from its root.

    Exit code 0: every vector is met; 7: some are not; 3: a file is not a vector file.
    """

    from draftwire.conformance.checks import check_files

    def report(line: str) -> None:
        if not quiet or not line.endswith("vectors met"):
            click.echo(line)

    summary = check_files(files, report)
    verdict = "conforming" if summary.conforming else f"{summary.failed} not met"
    files_read = "1 file" if summary.files == 1 else f"{summary.files} files"
    click.echo(f"{summary.vectors} vectors in {files_read}: {verdict}")
    return ExitCode.OK if summary.conforming else ExitCode.NOT_CONFORMING
