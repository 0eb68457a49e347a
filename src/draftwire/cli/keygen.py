"""``draftwire keygen``: a new key for two machines."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    epilog="""\b
Examples:
  draftwire keygen draftwire.key
  scp -p draftwire.key target-box:
  draftwire serve --host 0.0.0.0 --psk-file draftwire.key
"""
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def keygen(file: Path) -> None:
    """Write a new random key to FILE, which only you may read.

    Copy it to the other machine over a way that you trust, and give it to `serve` and `generate`
    with --psk-file. It is never printed. With it, each end knows that the other holds the key and
    that nothing was changed on the way; the text itself can be read on the wire.
    """
    from draftwire.transport.keys import write_new_key

    write_new_key(file)
    click.echo(f"a new key is in {file}; copy it to the other machine, and nowhere else")
