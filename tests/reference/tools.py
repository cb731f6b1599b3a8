"""docs/tools.md: each terminal tool with its options, examples and an output, made of its file."""

from collections.abc import Iterator

from kprobe_exporter.tools.load import FOLDER, Tool, load_tool, tool_names
from kprobe_exporter.tools.tool_model import ColumnModel, OptionModel, ToolModel, tool_schema
from tests.reference.markdown import Template, code, table


def document() -> str:
    tools = [load_tool(FOLDER / f"{name}.yaml") for name in tool_names()]
    return Template("tools.md").filled(
        {"keys": "\n\n".join(_keys()), "tools": "\n\n".join(map(_tool, tools))}
    )


def _keys() -> Iterator[str]:
    """Return a table for the file, for a column and for an option."""
    schema = tool_schema()
    titles = {ToolModel: "The file", ColumnModel: "A column", OptionModel: "An option"}
    for model, title in titles.items():
        properties = schema if model is ToolModel else schema["$defs"][model.__name__]
        rows = [
            (code(name), " ".join(found.get("description", "").split()))
            for name, found in properties["properties"].items()
        ]
        yield f"{title}:\n\n{table(('key', 'what it is'), rows)}"


def _tool(tool: Tool) -> str:
    """Return the section of one tool."""
    model = tool.model
    also = f" Also called {', '.join(map(code, model.aliases))}." if model.aliases else ""
    parts = [f"### {tool.name}", model.help + also]
    options = [(code(_named(name, option)), option.help) for name, option in model.options.items()]
    if options:
        parts.append(table(("option", "what it does"), options))
    shown = [f"kprobe-exporter {command}  # {use}" for command, use in model.examples.items()]
    parts.append("\n".join(["```", *shown, "", *model.output.splitlines(), "```"]))
    if model.instead:
        parts.append(f"On a kernel that cannot have its probes: {model.instead}")
    return "\n\n".join(parts)


def _named(name: str, option: OptionModel) -> str:
    if option.argument:
        return name.upper()
    return ", ".join([*([f"-{option.short}"] if option.short else []), f"--{name}"])
