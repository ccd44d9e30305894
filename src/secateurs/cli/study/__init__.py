"""`secateurs study`: check, run, watch, resume, repeat, report and export a study."""

import typer

from secateurs.cli.study.planning import cancel, check
from secateurs.cli.study.results import export, report, rerun, status
from secateurs.cli.study.running import resume, run

app = typer.Typer(
    help="Compare methods in a study that nothing can lose.", no_args_is_help=True
)
for command in (check, run, resume, status, cancel, rerun, report, export):
    app.command()(command)
