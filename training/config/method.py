"""Groups of keys that depend on a method: a class for each method, with its own keys and what builds it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import Field, dataclass, fields
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar

from ringfeed.sharding.common.strict_yaml import YAML_SCALARS
from ringfeed.sharding.common.validation import fit
from ringfeed.sharding.errors import ConfigError

from .checks import FUNCTION, Options, is_function, key, require


class Method(Options):
    """The keys of one method."""

    built_by: ClassVar[str]
    """`module:name` of what builds the method. It is imported late, since it needs TensorFlow."""

    def __init_subclass__(cls, group: str = "", built_by: str = "") -> None:
        super().__init_subclass__(group)
        if built_by:
            cls.built_by = built_by

    def builder(self) -> Any:
        """Return what `built_by` names."""
        module, _, name = self.built_by.partition(":")
        return attrgetter(name)(import_module(f"ringfeed.training.{module}"))


@dataclass(frozen=True)
class Methods:
    """The methods of a group."""

    group: str
    tag: str  # the key that names a method; its default in each class is the name of that method
    text: str  # help of that key; a list of the names follows
    classes: tuple[type[Any], ...]  # a class for each method, the first for the default
    own: type[Any] | None = None  # the class for a function of the user's, in place of a name

    @cached_property
    def by_name(self) -> dict[str, type[Any]]:
        """The classes by the names of their methods."""
        return {str(getattr(kind, self.tag)): kind for kind in self.classes}

    @cached_property
    def keys(self) -> dict[str, Field[Any]]:
        """All keys of the group, each with a help that names its methods."""
        found: dict[str, dict[str, Field[Any]]] = {}
        for method, kind in self.by_name.items():
            for spec in fields(kind):
                found.setdefault(spec.name, {})[method] = spec
        for spec in fields(self.own) if self.own else ():
            found.setdefault(spec.name, {}).setdefault(FUNCTION, spec)
        return {name: self._tag_key if name == self.tag else self._merged(specs) for name, specs in found.items()}

    @property
    def _tag_key(self) -> Field[Any]:
        names = (*self.by_name, *((FUNCTION,) if self.own else ()))
        found: Field[Any] = key(names[0], f"{self.text}: {', '.join(names)}", choices=names)
        return found

    def _merged(self, specs: Mapping[str, Field[Any]]) -> Field[Any]:
        """One field for a key of several methods, which may differ in its help, choices and default."""
        texts: dict[str, list[str]] = {}
        merged = copy(next(iter(specs.values())))
        for method, spec in specs.items():
            if method != FUNCTION or len(specs) == 1:
                other = "" if spec.default == merged.default else f" (default {spec.default})"
                texts.setdefault(spec.metadata["help"] + other, []).append(method)
        is_common = len(texts) == 1 and len(specs) == len(self.by_name) + (self.own is not None)
        words = (text if is_common else f"{', '.join(owners)}: {text}" for text, owners in texts.items())
        choices = dict.fromkeys(word for spec in specs.values() for word in spec.metadata.get("choices") or ())
        rules = {**merged.metadata, "help": "; ".join(words), "choices": tuple(choices) or None}
        merged.metadata = MappingProxyType(rules)
        return merged

    def made(self, values: Mapping[str, Any]) -> Any:
        """Return the options of the method that values name.

        A ConfigError says that there is no such method, that a value is wrong, or that a key is another method's.
        """
        name = values.get(self.tag, next(iter(self.by_name)))
        kind = self.by_name.get(name) if isinstance(name, str) else self.classes[0]
        kind = self.own if kind is None and is_function(name) else kind
        if kind is None:
            *names, last = self._tag_key.metadata["choices"]
            words = f"{', '.join(names)}, {'or ' if last == FUNCTION else ''}{last}"
            require(False, f"{self.group}.{self.tag}", f"one of {words}", name)
        own = {spec.name for spec in fields(kind)}  # type: ignore[arg-type]  # it is not None
        for other in values.keys() & self.keys.keys() - own:
            if _listed(values[other]) != _listed(key_default(self.keys[other])):  # older files hold all defaults
                owners = [one for one, its in self.by_name.items() if any(spec.name == other for spec in fields(its))]
                raise ConfigError(
                    f"{self.group}.{other} is a key of {', '.join(owners) or FUNCTION}, not of {name}: leave it out"
                )
        given = {leaf: value for leaf, value in values.items() if leaf in own or leaf not in self.keys}
        return fit(self.group, given, kind, YAML_SCALARS)


def key_default(spec: Field[Any]) -> Any:
    """Return the default of a key that has one."""
    return spec.default_factory() if callable(spec.default_factory) else spec.default


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
