"""`python -m attnport_bundle selftest`: exit 0 fine, 2 no bundle, 3 no runtime, 4 numbers are off, 6 a file differs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from .errors import BundleError
from .model import HERE
from .selftest import Report, selftest


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m attnport_bundle", description="Checks this bundle.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = verbs.add_parser("selftest", help="compare every file and run the golden cases")
    test.add_argument("folder", nargs="?", type=Path, default=HERE, help="another bundle (default: this one)")
    test.add_argument("--threads", type=int, help="compute threads")
    test.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        report = selftest(options.folder, options.threads)
    except BundleError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    if options.json:
        print(json.dumps(dataclasses.asdict(report), indent=1))
    else:
        _print(report)
    return report.exit_code


def _print(report: Report) -> None:
    width = max(len(row.check) for row in report.rows)
    for row in report.rows:
        print(f"{row.check:<{width}}  {row.verdict:<7}  {row.detail}")
    if report.unverified:
        print("This bundle is UNVERIFIED: a form in it was not compared with its source when it was made.")
    print("OK" if report.exit_code == 0 else f"NOT OK (exit {report.exit_code})")


if __name__ == "__main__":
    sys.exit(main())
