"""How kernels are compiled, and what a first join loads; most of it in processes of their own."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import pyarrow as pa
import pytest

from semistream.kernels import kernel
from semistream.relation import MasterTable
from semistream.workload import products

READY_TO_COMPILE = "numba.typed.typeddict"
"""Imported by Numba when it gets ready to compile."""
NOT_NEEDED = ("pandas", "pyspark", "rich", "scipy.linalg", "typer", READY_TO_COMPILE)

FIRST_JOIN = """
import json, sys
import pyarrow as pa
from numba.core.event import install_recorder
from semistream.algorithms import fixed_engine
from semistream.relation import MasterTable

master, stream, algorithm, io = sys.argv[1:]
with pa.ipc.open_file(stream) as file:
    batch = file.get_batch(0)
with install_recorder("numba:compile") as compiled:
    engine = fixed_engine(
        MasterTable.open(master), algorithm=algorithm, on="product_id", how="left",
        memory=1 << 20, io=io,
    )
    rows = sum(joined.num_rows for joined in engine.run(iter([batch])))
assert rows == batch.num_rows
print(json.dumps({"modules": list(sys.modules), "compiled": len(compiled.buffer)}))
"""

FIRST_COMMIT = """
import json, sys
import pyarrow as pa
from semistream.relation import MasterTable
from semistream.relation.key_table import assigned, key_table

shop, kind, folder = sys.argv[1:]
with pa.ipc.open_file(f"{shop}/{kind}.arrow") as file:
    batch = file.get_batch(0)
table = pa.Table.from_batches([batch]).slice(0, 100)
for layout in ("key", "given"):
    path = f"{folder}/{kind}-{layout}"
    MasterTable.from_arrow(table, path, key="product_id", layout=layout, page_bytes=4096)
    MasterTable.open(path).upsert(table.slice(50))
keys = key_table(f"{folder}/{kind}-keys", key={"k": kind}, surrogate="s")
assert len(assigned(keys.location, [batch.column("product_id")], ["k"])) == batch.num_rows
print(json.dumps(list(sys.modules)))
"""

MODULE = """
from semistream.kernels.compiling import kernel

@kernel
def inner(number):
    return number + 1

@kernel
def outer(number):
    return inner(number) + inner(number + 1)
"""

COMPILE = """
import sys
sys.path.insert(0, sys.argv[1])
from numba.core.event import install_recorder
print("ready", flush=True)
sys.stdin.readline()
with install_recorder("numba:compile") as compiled:
    import shared
    assert shared.outer(3) == 9
print(sum(event.is_start for _, event in compiled.buffer))
"""


def child(script: str, *arguments: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master table and some sales for each kind of key."""
    folder = tmp_path_factory.mktemp("shop")
    table = products(30_000, seed=1)
    drawn = pa.array(np.random.default_rng(1).integers(0, 30_000, 1_000))
    for kind in (pa.int64(), pa.string()):
        keyed = table.set_column(0, "product_id", table["product_id"].cast(kind))
        MasterTable.from_arrow(keyed, folder / f"{kind}.master", key="product_id")
        stream = pa.table({"product_id": drawn.cast(kind), "quantity": drawn})
        with pa.ipc.new_file(str(folder / f"{kind}.arrow"), stream.schema) as file:
            file.write(stream)
    return folder


@pytest.fixture(scope="module")
def compiled() -> None:
    subprocess.run([sys.executable, "-m", "semistream", "compile"], check=True)


# Each two of a key, an algorithm and an io come together once.
@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("kind", "algorithm", "io"),
    [
        ("int64", "chybridjoin", "buffered"),
        ("int64", "inlj", "unmapped"),
        ("string", "chybridjoin", "unmapped"),
        ("string", "inlj", "buffered"),
    ],
)
def test_after_the_command_compile_a_first_join_compiles_nothing_and_imports_little(
    shop: Path, kind: str, algorithm: str, io: str
) -> None:
    paths = (str(shop / f"{kind}.master"), str(shop / f"{kind}.arrow"))
    found = child(FIRST_JOIN, *paths, algorithm, io)
    assert found["compiled"] == 0
    assert not set(NOT_NEEDED) & set(found["modules"])


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_a_first_commit_imports_no_pandas(shop: Path, tmp_path: Path, kind: str) -> None:
    assert "pandas" not in child(FIRST_COMMIT, str(shop), kind, str(tmp_path))


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text(MODULE)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(tmp_path)],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for each in children:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    counts = []
    for each in children:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in children:
        counts.append(int(each.communicate()[0]))
        assert each.returncode == 0
    assert sum(counts) == 2, "the kernel and the one that it calls, whoever compiled them"


@kernel
def _plus_one(number: int) -> int:
    return number + 1


@kernel
def _calls(small: Any) -> int:
    return _plus_one(7) + _plus_one(small[0]) + _plus_one(len(small))


@kernel
def _broken(number: int) -> int:
    return number.no_such_thing  # type: ignore[attr-defined,no-any-return]


def test_a_constant_and_a_small_integer_need_no_kernel_of_their_own() -> None:
    assert _calls(np.array([3], np.int32)) == 8 + 4 + 2
    compiled: Any = _plus_one
    # None at all if `_calls` was compiled before, and loaded now.
    assert set(compiled.signatures) <= {(numba.types.int64,)}


def test_a_kernel_that_cannot_be_compiled_leaves_no_lock() -> None:
    with pytest.raises(numba.core.errors.TypingError, match="no_such_thing"):
        _broken(1)
    compiled: Any = _broken
    assert compiled._cache._held is None


MAKES_ARRAYS = {"sort", "copy", "empty", "zeros", "ones", "full", "arange", "where", "concatenate"}


def test_kernels_that_only_borrow_arrays_call_nothing_that_makes_some() -> None:
    """Numba compiles it only if the same has been compiled before for another kernel."""
    borrowing = 0
    for file in (Path(__file__).parents[2] / "src/semistream").rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            if "borrowing_kernel" not in map(ast.unparse, function.decorator_list):
                continue
            borrowing += 1
            called = {
                call.func.attr
                for call in ast.walk(function)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            }
            assert not called & MAKES_ARRAYS, f"{function.name} in {file.name}"
    assert borrowing > 5


class Several(NamedTuple):
    """Arguments of a kernel, as the parts hand them over."""

    values: Any
    size: Any
    inner: tuple[Any, ...] = ()


def test_remembered_types_are_those_that_numba_finds() -> None:
    """Two tuples count as the same only if Numba would compile them the same."""
    numbers = np.arange(12)
    frozen, table = np.arange(12), np.zeros((3, 4), np.int32)
    frozen.flags.writeable = False
    record = np.dtype([("code", np.int64), ("next", np.int32)])
    arrays = [
        *(numbers, frozen, numbers[::2], numbers.astype(np.int32)),
        *(
            table,
            table.T,
            table[:, :2],
            np.zeros(3, record),
            np.zeros(12, np.uint8)[1:9].view("i8"),
        ),
    ]
    sizes = [1, -(2**63), 2**63, 1.5, True, np.int32(7), None, Several(numbers, 1), (numbers, 2)]
    values = [Several(array, size) for array in arrays for size in sizes]
    values += [Several(numbers, 1, (array, 2)) for array in arrays]

    @kernel
    def nothing(_: Any) -> int:
        return 0

    dispatcher, typeof = cast(Any, nothing), cast(Any, numba.typeof)
    for value in [*values, *values]:
        assert dispatcher.typeof_pyval(value) == typeof(value)
