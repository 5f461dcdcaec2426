"""Commands that are made of the signatures of verbs."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import click

from attnport.console.arguments import FOLDER, as_click, refuse
from attnport.console.run import Reporter, carry_out, complain
from attnport.options import Option, command_line, parameters

Finish = Callable[[], None]
"""Prints the result of a verb, and raises for its verdict."""

PROJECT = Path("pyproject.toml")
BY_HAND = {
    *("trust-source", "trust-remote-code", "metric", "maps", "bundle"),  # run code
    *("output", "save", "junit", "fix"),  # write files
    *("ray", "address", "host"),  # reach other machines
    *("key", "sign", "unverified", "with-weights"),  # say what is trusted, or given away
}
"""Options that no file may give, as the file may have come with a folder from elsewhere."""


class Verbs(click.Group):
    """A group of commands that suggests the closest one for an unknown verb."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion, or with the list of verbs."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            verbs = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], verbs, n=1)
            suggestion = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(verbs)}."
            ctx.fail(f"No such verb {args[0]!r}. {suggestion}")
        return super().resolve_command(ctx, args)

    def verb(
        self, task: str, example: str, name: str = "", *, several: bool = False, needs_folder: bool = True
    ) -> Callable[[Callable[..., Finish]], Verb]:
        """Makes a function a command of the group; see `Verb`."""

        def decorate(work: Callable[..., Finish]) -> Verb:
            made = Verb(work, task, example, name, several=several, needs_folder=needs_folder)
            self.add_command(made)
            return made

        return decorate

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs by their task, in the order in which they were added."""
        verbs = [verb for verb in self.commands.values() if isinstance(verb, Verb)]
        width = max(len(str(verb.name)) for verb in verbs)
        for task in dict.fromkeys(verb.task for verb in verbs):
            with formatter.section(task):
                rows = [(f"{verb.name:{width}}", verb.get_short_help_str(1000)) for verb in verbs if verb.task == task]
                formatter.write_dl(rows)


class Verb(click.Command):
    """A command with the parameters of its verb, which is imported when the command is used.

    Args:
        work: Called with the Reporter, with the verb as a `partial` that has its arguments, and by name with the
            command's own options: further parameters of `work`. It computes, and returns what prints the result and
            raises for its verdict. Its docstring is the command's help, and its name is that of the verb.
        task: What it is for: the heading under which the help of the group has it.
        example: A command line that its own help shows.
        name: What the command is called; "" = as the verb.
        several: Whether the command has `--ray`, with which FOLDER may be several.
        needs_folder: Whether FOLDER has to be given, of a command with `--ray`.
    """

    def __init__(
        self,
        work: Callable[..., Finish],
        task: str,
        example: str,
        name: str = "",
        *,
        several: bool = False,
        needs_folder: bool = True,
    ) -> None:
        super().__init__(name or work.__name__.replace("_", "-"), callback=self._run, help=work.__doc__)
        del self.__dict__["params"]  # the property below finds them
        self.task, self.example = task, example
        self._work, self._several, self._needs_folder = work, several, needs_folder

    @property
    def _verb(self) -> Callable[..., Any]:
        name = self._work.__name__
        found: Callable[..., Any] = getattr(importlib.import_module(f"attnport.verbs.{name}"), name)
        return found

    @property
    def _functions(self) -> tuple[Callable[..., Any], ...]:
        """Whose parameters the command has: the verb's, its own, and those of every command."""
        return (self._verb, self._work, Reporter, *[on_cluster] * self._several)

    @cached_property
    def params(self) -> list[click.Parameter]:  # type: ignore[override]  # a field there, made on demand here
        """Those of the verb, of the command itself, and of every command."""
        found: list[click.Parameter] = []
        if self._several:
            found.append(click.Argument(["folder"], type=FOLDER, nargs=-1, required=self._needs_folder))
        for function in self._functions:
            taken = (one for one in parameters(function).values() if isinstance(one.note, Option))
            found += [as_click(one) for one in taken if not (self._several and one.name == "folder")]
        return sorted(found, key=lambda one: (one.param_type_name == "option", not one.required))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click's, with the project's defaults."""
        settings = self._settings(parent.command.commands if parent and isinstance(parent.command, Verbs) else ())
        try:
            return super().make_context(info_name, args, parent, default_map=settings, **extra)
        except click.BadParameter as err:
            if err.param is not None and err.param.name in settings:
                raise click.UsageError(f"{err.format_message()} {PROJECT} sets this option.") from err
            raise

    def _settings(self, verbs: Collection[str]) -> dict[str, Any]:
        """The defaults of a project: `[tool.attnport.VERB]` in the `pyproject.toml` of the current folder.

        Args:
            verbs: The verbs that may have a table, if there are others than this one.

        Raises:
            click.UsageError: the file cannot be read, or names no verb, no option of this one, or one of `BY_HAND`.
        """
        if not PROJECT.is_file() or b"[tool.attnport" not in (text := PROJECT.read_bytes()):
            return {}
        import tomllib

        try:
            tables = tomllib.loads(text.decode())["tool"]["attnport"]
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
            raise click.UsageError(f"{PROJECT} cannot be read: {err}.") from err
        table = tables.get(str(self.name), {}) if isinstance(tables, dict) else tables
        if not isinstance(table, dict):
            raise click.UsageError(f"{PROJECT}: expected a table for each verb, such as [tool.attnport.{self.name}].")
        if verbs and (unknown := sorted(set(tables) - set(verbs))):
            raise click.UsageError(f"{PROJECT}: there is no verb {unknown[0]!r}.")
        options = {flag.removeprefix("--"): one for one in self.params for flag in one.opts if flag.startswith("--")}
        if unknown := sorted(set(table) - set(options)):
            raise click.UsageError(f"{PROJECT}: attnport {self.name} has no option {unknown[0]!r}.")
        if refused := sorted(BY_HAND & set(table)):
            raise click.UsageError(f"{PROJECT}: --{refused[0]} is given by hand alone.")
        found = {}
        for flag, value in table.items():
            several = isinstance(value, list)
            if isinstance(value, dict) or (several and not options[flag].multiple):
                raise click.UsageError(f"{PROJECT}: attnport {self.name} takes one value for {flag!r}.")
            found[str(options[flag].name)] = [value] if options[flag].multiple and not several else value
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verb's options, and apart from them what every command has; then the example."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        common = [one for one in options if one not in self.params or one.name in parameters(Reporter)]
        own = [one for one in options if one not in common]
        for title, shown in (("Options", own), ("Options of every command", common)):
            if rows := [row for one in shown if (row := one.get_help_record(ctx)) is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        with formatter.section("Example"):
            formatter.write(f"{'':{formatter.current_indent}}{self.example}\n")

    def _run(self, **values: Any) -> None:
        command = f"{command_line(str(self.name), *self._functions, **values | {'dry_run': False})}\n"

        def taken(function: Callable[..., Any]) -> dict[str, Any]:
            return {name: values.pop(name) for name, one in parameters(function).items() if one.note}

        out, own = Reporter(**taken(Reporter)), taken(self._work)
        cluster = taken(on_cluster) if self._several else {}

        def work() -> Finish:
            if out.dry_run:
                return lambda: out.print(command)
            if self._several:
                folders = values.pop("folder")
                if cluster["address"] is not None:
                    refuse(own, "{} goes without --ray.")
                    return on_cluster(out, str(self.name), folders, values, **cluster)
                if len(folders) > 1:
                    raise click.UsageError(
                        f"several folders go with --ray ADDRESS; got {', '.join(map(str, folders))}."
                    )
                values.update(folder=folders[0] if folders else None)
            told = {"progress": out.progress, "tell": out.tell, "begin": out.stage, "on_bug": out.bug}
            verb = self._verb
            values.update({name: value for name, value in told.items() if name in parameters(verb)})
            return self._work(out, partial(verb, **values), **own)

        carry_out(out, str(self.name), {**values, **own, **cluster}, work)


def on_cluster(
    out: Reporter,
    verb: str,
    folders: Sequence[Path],
    options: Mapping[str, Any],
    *,
    address: Annotated[
        str | None,
        Option(
            "Run on every machine of a Ray cluster, at ADDRESS, auto or local, on a copy of each FOLDER.",
            "--ray",
            metavar="ADDRESS",
        ),
    ] = None,
) -> Finish:
    """`--ray` of `check`, `bench` and `tune`: runs a verb for every folder on every machine of a cluster.

    Args:
        options: The arguments of the verb besides the folder.
    """
    from attnport.verbs.machines import on_machines

    if not folders:
        raise click.UsageError("Missing argument 'FOLDER...'.")
    report = on_machines(verb, folders, str(address), progress=out.progress, **options)

    def finish() -> None:
        out.show(report)
        for result in report.results:
            if result.exit_code:
                complain(f"{result.machine}, {result.folder}: {result.error}")
        sys.exit(report.exit_code)

    return finish
