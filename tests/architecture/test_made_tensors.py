"""Every tensor that the library makes names its element type and its device.

A program may set torch's default device or type (`torch.set_default_device`, `with
torch.device("meta")`), which must not reach the library's own tensors. Nothing of the library runs
here: the test reads its source. The functions are those that torch itself lists.
"""

import ast
from pathlib import Path

from torch.utils._device import _device_constructors

SOURCE = Path(__file__).resolve().parents[2] / "src"
MAKERS = {each.__name__ for each in _device_constructors()}
NAMED = ("dtype", "device")


def made_tensors(path: Path) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return the calls that make a tensor: function, line and the arguments that are not named."""
    text = path.read_text()
    if "torch" not in text:
        return []
    tree = ast.parse(text)
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "torch"
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = None
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "torch":
            name = node.func.attr
        elif isinstance(node.func, ast.Name):
            name = imported.get(node.func.id)
        if name in MAKERS:
            given = {keyword.arg for keyword in node.keywords}
            missing = tuple(each for each in NAMED if each not in given)
            found.append((name, node.lineno, missing))
    return found


def test_the_list_of_functions_has_the_usual_ones():
    assert {"empty", "zeros", "ones", "full", "tensor", "arange", "sparse_coo_tensor"} <= MAKERS


def test_a_made_tensor_names_its_type_and_its_device():
    calls = {
        (str(path.relative_to(SOURCE)), *call)
        for path in SOURCE.rglob("*.py")
        for call in made_tensors(path)
    }
    assert len(calls) > 15  # else the test finds none of them
    assert [
        f"{file}:{line}: torch.{name} without {' and '.join(missing)}"
        for file, name, line, missing in sorted(calls)
        if missing
    ] == []
