"""The command line: parse, call one function, print. Commands work on files and on studies; what
takes a model is called from Python.

A new command is one file with one function, and one entry in `commands.py`:

* `cli/<name>.py` holds `def <name>(...) -> None` with typer annotations; its docstring is the help
  text. What several commands share is in `commands.py`.
* torch and every module of ours that needs it are imported inside the function, never at the top of
  the file, so that `secateurs --help` stays quick (a test looks at `sys.modules`).
* A user's mistake raises an error of `secateurs.errors`; `main` prints it in one piece
  and exits with 2.
* Results go to standard output, progress to standard error. Files are written with
  `safefile.replacing`, after `commands.check_outputs` has made sure that no input is overwritten.
"""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from secateurs.base.foreign import visible
from secateurs.cli.commands import all_commands, say
from secateurs.errors import SecateursError
from secateurs.version import __version__


def _version(wanted: bool) -> None:
    if wanted:
        say(f"secateurs {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


def _app_of(name: str | None) -> typer.Typer:
    """The command line; for the name of a command, only that command.

    Typer reads the signatures of all it is given, which is a sixth of the time of a short command.
    """
    app, commands = _empty(), all_commands()
    for each in [name] if name in commands else commands:
        function = commands[each].function
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=each)
        else:
            app.command(each)(function)
    return app


def _empty() -> typer.Typer:
    """The command line without commands."""
    return typer.Typer(
        help="Sparse networks in files, and studies of them: prune, pack, verify, compare.",
        no_args_is_help=True,
        # Our own errors are printed in one line, all others as Python prints them.
        pretty_exceptions_enable=False,
        callback=_common,
    )


def _outline() -> typer.Typer:
    """All commands by name and first words, for the help and for the nearest name to a wrong one.

    No signature is read, because none is shown: that is a tenth of the time of `--help`.
    """
    app = _empty()
    for name, command in all_commands().items():
        app.command(name, help=command.summary)(_nothing)
    return app


def _nothing() -> None:
    """Stands for a command whose signature is not needed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error of ours is one message on standard error and exit code 2."""
    _make_notices_visible()
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        named = all_commands().keys() & set(given)
        if "_SECATEURS_COMPLETE" in os.environ:
            app = _app_of(None)  # a shell asks, with the words so far in other variables
        else:
            app = _app_of(given[0]) if named else _outline()
        app(args=given, prog_name="secateurs")
    except SecateursError as error:
        _stop(str(error))
    # A full disk or an unreadable file is the user's to mend: no traceback.
    except OSError as error:
        _stop(f"{error.filename or 'a file'}: {error.strerror or error}.")


def _make_notices_visible() -> None:
    """Warnings and log lines name parameters, too, so the control characters in them are shown as
    signs.
    """
    warnings.formatwarning = _format_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Visible())


_FORMAT = warnings.formatwarning


def _format_warning(*about: Any, **more: Any) -> str:
    return visible(_FORMAT(*about, **more))


class _Visible(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _stop(message: str) -> None:
    say(f"error: {message}", err=True)
    sys.exit(2)
