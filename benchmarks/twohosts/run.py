"""``make two-hosts``: drafter and verifier on two hosts of their own, over six links, measured.

    python -m benchmarks.twohosts.run [--quick] [--rates MBIT ...] [--delays MS ...] [--seconds S]

Two network namespaces with a cable between them stand for the hosts, tc's token bucket for the
rate, a relay that delivers every byte later for the distance. The drafter listens on an address
that is not loopback, with a pre-shared key. Everything is removed at the end, and on Ctrl-C.
Exit code 1 when a breaker leaves a pair more than 3% slower than its target alone, 3 where the
hosts cannot be made.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.twohosts.namespaces import Hosts, NoNamespacesError, two_hosts

CANNOT: Final = 3
RATES: Final = (1000, 100)
DELAYS: Final = (0.2, 2.0, 10.0)
_ROOT: Final = Path(__file__).parents[2]
_LEAVE_SECONDS: Final = 20.0


def main(arguments: Sequence[str]) -> int:
    """Make the hosts, measure on them, and return the exit code."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with two_hosts() as hosts:
            return _measure(hosts, options, arguments)
    except NoNamespacesError as error:
        print(f"two hosts cannot be made here: {error}", file=sys.stderr)
        return CANNOT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twohosts.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two links, a few turns")
    parser.add_argument("--rates", type=int, nargs="+", help="10^6 bits a second")
    parser.add_argument("--delays", type=float, nargs="+", help="ms added to a round trip")
    parser.add_argument("--seconds", type=float, help="of measuring, each link")
    parser.add_argument("--out", type=Path, default=Path(".out"), help="where two-hosts.json goes")
    return parser.parse_args(arguments)


def _measure(hosts: Hosts, options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the measuring program on the verifier's host and return its exit code."""
    quick: bool = options.quick
    rates = options.rates or ((100,) if quick else RATES)
    delays = options.delays or ((0.2, 10.0) if quick else DELAYS)
    settings = {
        "hosts": hosts.pid,
        "command": " ".join(["python -m benchmarks.twohosts.run", *arguments]),
        "out": options.out,
        "seconds": options.seconds or (4 if quick else 28),
        "settle": 2 if quick else 5,
        "proposals": 3 if quick else 9,
    }
    passed = [f"--{name}={value}" for name, value in settings.items()]
    passed += ["--rates", *map(str, rates), "--delays", *map(str, delays)]
    program = [sys.executable, "-m", "benchmarks.twohosts.measure", *passed]
    path = [str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    child = subprocess.Popen(hosts.command("verifier", program), env=environment)
    try:
        return child.wait()
    finally:  # on Ctrl-C it has had the signal too, and takes its own children with it
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
