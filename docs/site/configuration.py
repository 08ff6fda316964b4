"""The configuration reference: every key of `ringfeed train`, from the schema that `--print-schema` prints."""

import json
from collections.abc import Iterator
from typing import Any

from commands import cell

from ringfeed.training.config.json_schema import config_schema

_INTRODUCTION = """\
# Configuration

The keys of the file of `ringfeed train --config FILE`, and of `--set KEY=VALUE`. The key `a.b` is `b` in the section
`a`. `ringfeed train --config FILE --print-config` prints all keys of a run with their values, and
`ringfeed train --print-schema` prints this reference as a JSON schema, by which editors complete and check the file.
What the keys do together is in [Training](../training.md), [Optimizers](../optimizers.md) and
[Synchronising ranks](../synchronisation.md).

```yaml
data: {url: /data/flights, batch_size: 2048, balance: uniform}
model: {name: tabular, hidden: [256, 128]}
optimizer: {name: lars, learning_rate: 0.5, base_batch_size: 256, weight_decay: 1e-4}
epochs: 5
```"""


def configuration_pages() -> dict[str, str]:
    """The page by its name."""
    schema = config_schema()
    keys: dict[str, Any] = schema["properties"]
    sections = {name: key["properties"] for name, key in keys.items() if key.get("properties")}
    plain = {name: key for name, key in keys.items() if name not in sections}
    parts = [_INTRODUCTION, "## The run", *items("", plain, set(schema.get("required", ())))]
    for name, section in sections.items():
        required = set(keys[name].get("required", ()))
        parts += [f"## `{name}`", *items(f"{name}.", section, required)]
    return {"reference/configuration.md": "\n\n".join(parts) + "\n"}


def items(prefix: str, keys: dict[str, Any], required: set[str]) -> Iterator[str]:
    """An item of a list for each key."""
    for name, key in keys.items():
        default = "required" if name in required else f"default `{yaml_of(key['default'])}`"
        anchor = f'<a id="{prefix}{name}"></a>'
        yield f"{anchor}`{prefix}{name}` <small>{type_of(key)}; {default}</small>\n:   {cell(key['description'])}"


def yaml_of(value: object) -> str:
    """A value as it is written in a file."""
    return value if isinstance(value, str) else json.dumps(value)


def type_of(key: dict[str, Any]) -> str:
    """The values that a key takes, in words."""
    if "anyOf" in key:
        return " or ".join(type_of(one) for one in key["anyOf"])
    if "enum" in key:
        return ", ".join(f"`{yaml_of(value)}`" for value in dict.fromkeys(key["enum"]))
    if "pattern" in key:
        return "module:function" if ":" in key["pattern"] else f"text like `{key['pattern']}`"
    if key.get("type") == "array":
        return f"list of {plural(type_of(key.get('items', {})))}"
    if key.get("type") == "object":
        values = key.get("additionalProperties")
        return f"mapping to {plural(type_of(values))}" if values else "mapping"
    words = {"string": "text", "null": "`null`", "boolean": "`true`, `false`"}
    return words.get(key.get("type", ""), key.get("type", "any"))


def plural(words: str) -> str:
    return {"text": "texts"}.get(
        words, words.replace("list of", "lists of") if words.startswith("list") else f"{words}s"
    )
