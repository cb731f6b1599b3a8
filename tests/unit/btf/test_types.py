"""The index of types by name, compared with a loop over all types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.btf import types as btf
from kprobe_exporter.btf.types import FUNC, STRUCT, TYPEDEF, Types
from tests.support.btf_samples import Blob

KINDS = (FUNC, STRUCT, TYPEDEF)
NAMES = st.sampled_from(["a", "ba", "sock", "tcp_sock", "vfs_read", ""])


def filled(chosen: list[tuple[int, str]], base: Blob | None = None) -> Blob:
    blob = Blob(base)
    for kind, name in chosen:
        blob.add(kind, name, 0)
    return blob


@given(
    kernels=st.lists(st.tuples(st.sampled_from(KINDS), NAMES), max_size=20),
    modules=st.lists(st.tuples(st.sampled_from(KINDS), NAMES), max_size=20),
    buckets=st.sampled_from([1, 2, 1 << 16]),
)
def test_the_index_finds_what_a_loop_over_all_types_finds(
    kernels: list[tuple[int, str]], modules: list[tuple[int, str]], buckets: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(btf, "_BUCKETS", buckets)
        kernel = filled(kernels)
        base = Types(kernel.data())
        module = Types(filled(modules, kernel).data(), base=base)
        for types, made in ((base, kernels), (module, [*kernels, *modules])):
            for name in ("a", "ba", "k", "sock", "tcp_sock", "vfs_read", "absent"):
                for kinds in (KINDS, (FUNC,), (STRUCT, TYPEDEF)):
                    expected = [
                        n for n, (kind, given) in enumerate(made, 1) if given == name and kind in kinds
                    ]
                    assert types.find(name, kinds) == expected
