"""Programs and libraries, compiled for the tests, and where their functions are."""

from kprobe_exporter.elf import locate
from kprobe_exporter.grammar.target import Kind, Target

PROGRAM = """
#include <stdio.h>
int table[4] = {1, 2, 3, 4};
int twice(int number) { return 2 * number; }
static __attribute__((noinline)) int hidden(int number) { return number + table[number & 3]; }
static int (*chosen(void))(int) { return twice; }
int late(int) __attribute__((ifunc("chosen")));
int main(int count, char **words) { return puts(words[0]) + hidden(count) + twice(count); }
"""


LIBRARY = """
__asm__(".symver old_answer, answer@VERS_1");
__asm__(".symver new_answer, answer@@VERS_2");
__asm__(".symver only_old, forgotten@VERS_1");
int old_answer(void) { return 1; }
int new_answer(void) { return 2; }
int only_old(void) { return 3; }
int plain(void) { return 4; }
int unexported(void) { return 5; }
"""


VERSIONS = "VERS_1 { global: answer; forgotten; plain; local: *; };\nVERS_2 { global: answer; } VERS_1;\n"

GO = 'int main(void) { return 0; }\nchar info[] __attribute__((section(".go.buildinfo"))) = "x";\n'


def file_offset(path: str, symbol: str, offset: int = 0) -> int:
    """Return where a uprobe at a symbol, or at an offset, of a file has to sit. Raises GrammarError."""
    return locate(Target(Kind.UPROBE, path=path, symbol=symbol, offset=offset)).offset
