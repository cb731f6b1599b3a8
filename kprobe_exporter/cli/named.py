"""A group of commands that are made when they are used, and a suggestion for a name that is none of them."""

from difflib import get_close_matches

import click


class NamedCommands(click.Group):
    """A group whose ``list_commands`` and ``get_command`` know the commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but suggest a command for a word that resembles one."""
        if args and (found := self.get_command(ctx, args[0])) is not None:
            return args[0], found, args[1:]  # click would make it again
        if args and (near := get_close_matches(args[0], self.list_commands(ctx), 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)
