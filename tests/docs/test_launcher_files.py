"""Tests of the files for launchers: names, paths and options, without the launchers."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from slackline.cli import app

ROOT = Path(__file__).parents[2]
LAUNCHERS = ROOT / "examples" / "launchers"


@pytest.fixture
def recipe() -> list[list[str]]:
    """Return the words of each instruction of the container's file."""
    text = (LAUNCHERS / "Containerfile").read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]


@pytest.fixture
def objects() -> dict[str, dict[str, Any]]:
    """Return the objects of the manifest by kind."""
    text = (LAUNCHERS / "kubernetes.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_the_image_copies_files_that_there_are(recipe: list[list[str]]) -> None:
    copied = [word for name, *words in recipe if name == "COPY" for word in words[:-1]]
    assert {"native", "src", "pyproject.toml", "constraints.txt", "examples"} <= set(copied)
    assert [word for word in copied if not (ROOT / word).exists()] == []


def test_the_image_has_what_the_source_distribution_needs(recipe: list[list[str]]) -> None:
    """Check the files that CMake includes against the files that the image copies."""
    copied = {word for name, *words in recipe if name == "COPY" for word in words[:-1]}
    asked = re.findall(r"^include\((\w+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert set(asked) <= copied


def test_the_pods_of_the_job_find_each_other(objects: dict[str, dict[str, Any]]) -> None:
    service, job = objects["Service"], objects["Job"]
    name, pods = job["metadata"]["name"], job["spec"]["completions"]
    template = job["spec"]["template"]["spec"]
    (container,) = template["containers"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["parallelism"] == pods
    assert template["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    hosts = container["args"][container["args"].index("--hosts") + 1].split(",")
    assert hosts == [f"{name}-{pod}.{template['subdomain']}" for pod in range(pods)]
    (waiting,) = template["initContainers"]
    assert waiting["command"][:4] == ["timeout", "300", "sh", "-c"]
    assert f"getent hosts {hosts[0]};" in waiting["command"][4]
    assert waiting["image"] == container["image"]


def parsed(words: list[str]) -> dict[str, Any]:
    """Parse the words of a `slackline` command; return the values of its parameters by name."""
    command = typer.main.get_command(app)
    context = command.make_context("slackline", list(words), resilient_parsing=False)
    _, chosen, rest = command.resolve_command(context, words)  # type: ignore[attr-defined]
    return dict(chosen.make_context(words[0], rest, parent=context).params)


def test_the_container_has_options_of_the_command(
    objects: dict[str, dict[str, Any]], recipe: list[list[str]]
) -> None:
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    assert recipe[-1] == ["ENTRYPOINT", "[slackline,", "run]"]
    given = parsed(["run", *container["args"]])
    assert (ROOT / "examples" / given["script"]).is_file()
    assert given["arguments"] == ["--epochs", "10"]


def test_the_batch_script_of_slurm_has_options_of_the_command() -> None:
    text = (LAUNCHERS / "slurm.sbatch").read_text().replace("\\\n", " ")
    (line,) = [each for each in text.splitlines() if each.startswith("srun ")]
    values = {
        "$hosts": ["a,b"],
        "$port": ["20007"],
        "$SLURM_CPUS_PER_TASK": ["4"],
        "$@": ["train.py", "--epochs", "10"],
    }
    _, _, command = line.partition(" slackline ")
    given = parsed([word for each in shlex.split(command) for word in values.get(each, [each])])
    assert (given["hosts"], given["port"], given["ranks"]) == ("a,b", 20007, 4)
    assert (given["script"], given["arguments"]) == (Path("train.py"), ["--epochs", "10"])
