"""The gateway's examples: what they are made of exists, and holds together."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

EXAMPLES = Path(__file__).parents[1] / "examples" / "gateway"


def documents(name: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all((EXAMPLES / name).read_text()))


@pytest.fixture(scope="module")
def options() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvfence", "gateway", "--help"], capture_output=True, text=True, check=True,
        env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"},
    )  # fmt: skip
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


def test_compose_publishes_the_gateway_alone(options: set[str]) -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["gateway"]
    assert services["gateway"]["ports"][1].startswith("127.0.0.1:")
    assert compose["networks"]["workers"]["internal"] is True
    given = [argument.partition("=")[0] for argument in services["gateway"]["command"]]
    assert set(given) <= options
    drain = next(one for one in services["gateway"]["command"] if one.startswith("--drain="))
    assert int(services["gateway"]["stop_grace_period"].removesuffix("s")) > int(drain.partition("=")[2])


def test_kubernetes_keeps_others_from_the_workers_and_lets_answers_end(options: set[str]) -> None:
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents("kubernetes.yaml")}
    pod = found["Deployment", "kvfence-gateway"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {argument.partition("=")[0] for argument in container["args"]} <= options
    drain = next(int(one.partition("=")[2]) for one in container["args"] if one.startswith("--drain="))
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + sleep
    for role in ("prefill", "decode"):
        assert found["Service", role]["spec"]["clusterIP"] == "None"  # one name, one process
    assert [port["targetPort"] for port in found["Service", "kvfence-gateway"]["spec"]["ports"]] == ["clients"]
    rules = found["NetworkPolicy", "sglang-workers"]["spec"]["ingress"]
    allowed = [peer["podSelector"]["matchLabels"]["app"] for rule in rules for peer in rule["from"]]
    assert allowed == ["kvfence-gateway", "sglang"]
    variables = {one["name"] for one in container["env"]}
    assert variables == {"KVFENCE_API_KEY", "KVFENCE_SALT_KEY"}
