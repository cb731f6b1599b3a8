"""The running kernel's types: its own and its modules', each read when it is first needed."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress

from kprobe_exporter.btf.enums import constants, enum_names, enumerators
from kprobe_exporter.btf.members import Member, resolve
from kprobe_exporter.btf.prototypes import Prototype, prototypes_in, symbols_of
from kprobe_exporter.btf.structures import Structures, nearest
from kprobe_exporter.btf.types import Data, Types
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.members import parse_path

KERNEL = "vmlinux"
RETURN = "$retval"
NO_TYPES = "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF), so that members cannot be found"


class KernelTypes:
    """The prototypes of functions, and where paths into structures lead.

    ``read`` returns the content of a file of /sys/kernel/btf, by its name, or raises OSError; ``modules``
    returns the names of the modules' files. The types that were read stay in memory as long as this object: 5
    MB for the kernel, and 4 bytes for each type.
    """

    def __init__(
        self, read: Callable[[str], Data], modules: Callable[[], Collection[str]] = lambda: ()
    ) -> None:
        self._read, self._modules = read, modules
        self._types: dict[str, Types] = {}
        self._structures: dict[str, Structures] = {}
        self._enums: dict[str, Mapping[int, str]] = {}

    def structures(self, module: str = "") -> Structures:
        """Return the structures of the kernel, or of a module. Raises GrammarError if there are none."""
        module = "" if module == KERNEL else module
        if module not in self._structures:
            self._structures[module] = Structures(self._of(module))
        return self._structures[module]

    def prototypes(self, names: Collection[str], module: str = "") -> dict[str, Prototype]:
        """Return the prototypes of these functions of the kernel, or of a module; empty without BTF.

        A missing file is tried again at the next call, since the module may be loaded by then. Raises
        GrammarError, see ``read_prototypes``.
        """
        symbols = symbols_of(names)
        with suppress(OSError):
            return prototypes_in(self._read_types(module, symbols), symbols) if symbols else {}
        return {}

    def member(
        self,
        text: str,
        written: str | None = None,
        module: str = "",
        root: Callable[[str], int | None] = lambda name: None,
    ) -> Member:
        """Return where the path ``text`` leads; see ``resolve`` of btf/members.py. Raises GrammarError."""
        path = parse_path(text)
        try:
            start = self.structures(module)
        except GrammarError:  # the module is not loaded: only a cast to a structure of the kernel leads on
            if path.module != KERNEL:
                raise
            start, root = self.structures(), lambda name: None
        return resolve(start, path, root, written, text, self.structures)

    def roots(self, module: str, function: str) -> Mapping[str, int]:
        """Return the types' numbers of a function's parameters, by name and as ``$argN``, and of ``$retval``.

        Raises GrammarError if they are not known.
        """
        types = self._of(module)
        prototypes = types.prototypes(function)
        if len(prototypes) != 1:
            why = "several functions of this name" if prototypes else "no function of this name"
            raise GrammarError(f"the types of {function}'s parameters are not known: BTF has {why}")
        [prototype] = prototypes
        record = types.record(prototype)
        found = {RETURN: record.value}
        for number in range(record.vlen):
            name, type_ = record.words[record.at + 2 * number : record.at + 2 * number + 2]
            found[f"$arg{number + 1}"] = found[types.text(name)] = type_
        return found

    def enumerators(self, name: str) -> Mapping[int, str]:
        """Return the names of an enum's values; see btf/enums.py. Raises GrammarError if there is none.

        The kernel's own come first, then those of the loaded modules.
        """
        if found := self._enum(name):
            return found
        near = nearest(name, {one: one for one in enum_names(self._of(""))})
        raise GrammarError(f"these types have no enum {name!r}{near}")

    def words(self, name: str) -> Mapping[int, str]:
        """Return the same, and nothing if there is no such enum."""
        with suppress(GrammarError):
            return self._enum(name)
        return {}

    def _enum(self, name: str) -> Mapping[int, str]:
        if name not in self._enums:
            found = (enumerators(types, name) for types in self._with(name))
            self._enums[name] = next(filter(None, found), {})
        return self._enums[name]

    def constants(self, names: frozenset[str]) -> Mapping[str, int]:
        """Return the values of enumerators of these names, as far as there are any."""
        with suppress(GrammarError):
            # Those of one tracepoint come from one place, and a module is looked at only if it has one.
            for types in self._with(*names):
                if found := constants(types, names):
                    return found
        return {}

    def _with(self, *names: str) -> Iterator[Types]:
        """Yield the kernel's types, and those of each module in whose file one of the names stands."""
        wanted = [name.encode() + b"\0" for name in names]
        yield self._of("")
        for module in self._modules():
            with suppress(OSError, GrammarError):
                data = self._read(module) if module != KERNEL else b""
                if any(data.find(name) >= 0 for name in wanted):
                    yield self._of(module)

    def _of(self, module: str) -> Types:
        """Return the types of the kernel, or of a module. Raises GrammarError."""
        try:
            return self._read_types(module)
        except OSError as error:
            missing = f"there are no types of the module {module} (is it loaded?)" if module else NO_TYPES
            raise GrammarError(missing) from error

    def _read_types(self, module: str, names: Collection[str] = ()) -> Types:
        """Return the same; ``names`` are functions for later questions. Raises GrammarError and OSError."""
        name = module or KERNEL
        if name not in self._types:
            base = self._read_types("") if module else None
            self._types[name] = Types(self._read(name), names, base)
        return self._types[name]
