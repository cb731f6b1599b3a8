"""The running kernel's types: its own and its modules', each read when it is first needed."""

from collections.abc import Callable, Mapping

from kprobe_exporter.btf import types as btf
from kprobe_exporter.btf.members import Member, resolve
from kprobe_exporter.btf.structures import Structures
from kprobe_exporter.btf.types import Types
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.members import parse_path

KERNEL = "vmlinux"
RETURN = "$retval"
NO_TYPES = "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF), so that members cannot be found"


class KernelTypes:
    """Resolves paths into structures.

    ``read`` returns the content of a file of /sys/kernel/btf, by its name, or raises OSError. What was read
    stays in memory as long as this object: 5 MB for the kernel, and 4 bytes for each type.
    """

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._types: dict[str, Types] = {}

    def structures(self, module: str = "") -> Structures:
        """Return the structures of the kernel, or of a module. Raises GrammarError if there are none."""
        return Structures(self._of(module))

    def member(
        self,
        text: str,
        written: str | None = None,
        module: str = "",
        root: Callable[[str], int | None] = lambda name: None,
    ) -> Member:
        """Return where the path ``text`` leads; see ``resolve`` of btf/members.py. Raises GrammarError."""
        return resolve(self.structures(module), parse_path(text), root, written, text)

    def roots(self, module: str, function: str) -> Mapping[str, int]:
        """Return the types' numbers of a function's parameters, by name and as ``$argN``, and of ``$retval``.

        Raises GrammarError if they are not known.
        """
        types = self._of(module)
        prototypes = {types.record(number).value for number in types.find(function, (btf.FUNC,))}
        if len(prototypes) != 1:
            why = "several functions of this name" if prototypes else "no function of this name"
            raise GrammarError(f"the types of {function}'s parameters are not known: BTF has {why}")
        record = types.record(prototypes.pop())
        found = {RETURN: record.value}
        for number in range(record.vlen):
            name, type_ = record.words[record.at + 2 * number : record.at + 2 * number + 2]
            found[f"$arg{number + 1}"] = found[types.text(name)] = type_
        return found

    def _of(self, module: str) -> Types:
        name = module or KERNEL
        if name not in self._types:
            base = self._of("") if module else None
            try:
                data = self._read(name)
            except OSError as error:
                missing = f"there are no types of the module {module} (is it loaded?)" if module else NO_TYPES
                raise GrammarError(missing) from error
            self._types[name] = Types(data, base=base)
        return self._types[name]
