"""Every private name of PyTorch is in the register, exists in the installed PyTorch, and is used nowhere else."""

import ast
import dataclasses
import pathlib

import check
import pytest

from helpers import torch_private

HELPERS = pathlib.Path(__file__).parents[2] / "helpers"
OWN = {"_getframe": "sys", "_repr_mimebundle_": "super()"}  # private names of others than PyTorch
OVERRIDDEN = {entry.path.rpartition(".")[2] for entry in torch_private.REGISTER if "FakeTensorMode._" in entry.path}


def private_names(path: pathlib.Path) -> list[str]:
    """Underscore names that a file takes from PyTorch or asks of an object that is not its own."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            parts = [*node.module.split("."), *(name.name for name in node.names)]
            found += [".".join(parts)] * any(part.startswith("_") for part in parts)
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("torch") and "._" in name.name]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            inherited = owner == "super()" and node.attr in OVERRIDDEN
            if owner not in ("self", "me", "cls") and OWN.get(node.attr) != owner and not inherited:
                found.append(f"{owner}.{node.attr}")
    return found


@pytest.mark.parametrize("path", sorted(HELPERS.rglob("*.py")), ids=lambda path: str(path.relative_to(HELPERS)))
def test_no_other_file_reaches_into_pytorch(path):
    if path.name != "torch_private.py":
        assert not private_names(path)


@pytest.mark.parametrize("code, found", [
    ("from torch._subclasses.fake_tensor import FakeTensor", ["torch._subclasses.fake_tensor.FakeTensor"]),
    ("import torch._dynamo", ["torch._dynamo"]), ("x._version", ["x._version"]), ("self._own, x.__class__", []),
    ("torch.nn.Module._apply", ["torch.nn.Module._apply"])])
def test_a_private_name_is_seen(code, found, tmp_path):
    file = tmp_path / "code.py"
    file.write_text(code)
    assert private_names(file) == found


@pytest.mark.parametrize("entry", torch_private.REGISTER, ids=lambda entry: entry.path)
def test_an_entry_says_everything_and_is_there(entry):
    assert entry.purpose and entry.without and entry.since.startswith("2.")
    assert entry.path.rpartition(".")[2].startswith("_") or "._" in entry.path
    if not entry.cuda:
        entry.find()


def test_make_check_names_the_first_that_is_missing(monkeypatch, capsys):
    gone = dataclasses.replace(torch_private.REGISTER[0], path="torch._gone._with_the_wind")
    monkeypatch.setattr(torch_private, "REGISTER", [gone, *torch_private.REGISTER])
    assert check.main() == 1
    said = capsys.readouterr().out
    assert "has no torch._gone._with_the_wind, which the project needs for tensors without data; without it" in said
    assert len(said.splitlines()) == 2


def test_a_missing_name_says_so_when_it_is_used():
    function = torch_private.private("torch._C._not_there", "nothing", "nothing breaks")
    torch_private.REGISTER.pop()
    with pytest.raises(RuntimeError, match=r"has no torch\._C\._not_there, which the project needs for nothing"):
        function(1)
