"""What the rig for vLLM makes of what it sees; the engine itself is not started here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from acceptance import bundle as bundles
from acceptance.servers import Launch
from acceptance.vllm import scenarios
from acceptance.vllm.catalogue import CONFIGURATIONS, SCENARIOS
from acceptance.vllm.client import Answer, Client
from acceptance.vllm.environment import requirements
from acceptance.vllm.play import _were_it_reachable
from acceptance.vllm.scenarios import B, judge, pool_below_context
from acceptance.vllm.servers import ENVIRON, SHOWN, Pair
from acceptance.vllm.table import read, write
from kvfence.drill.texts import BOARD, GARDEN, OWN, SECRET
from tests.conftest import DATA

REAL = DATA / "real" / "vllm-0.32"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(200, 1, f" {SECRET} and Ingrid"), "leaked"),
        (Answer(200, 1, BOARD[60:110]), "leaked"),
        (Answer(200, 1, f" {OWN} and Oskar keeps it on paper only."), "answered"),
        (Answer(200, 1, "\n\n\n"), "wrong"),
        (Answer(200, 1, GARDEN[:40]), "wrong"),
        (Answer(400, 1, error="too long"), "refused"),
        (Answer(0, 1, error="TimeoutError"), "refused"),
    ],
)
def test_answer_is_judged_by_whose_text_it_is(answer: Answer, word: str) -> None:
    assert judge(answer)[0] == word


def test_what_both_prompts_hold_is_no_leak() -> None:
    assert SECRET not in B
    assert judge(Answer(200, 1, "The password of the vault is"))[0] == "wrong"


def test_packages_of_sound_and_pictures_are_left_out() -> None:
    metadata = "\n".join(
        f"Requires-Dist: {one}"
        for one in (
            "torch==2.13.0+cpu; x",
            "torchaudio; x",
            "TorchVision",
            "torchcodec>=0.14",
            "ijson",
            'a; extra == "b"',
        )
    )
    assert requirements(f"Name: x\n{metadata}\n\n") == ["torch==2.13.0+cpu; x", "ijson"]


def test_table_declares_every_scenario_of_every_configuration() -> None:
    declared = read()
    assert declared.keys() == {one.name for one in CONFIGURATIONS}
    for one in CONFIGURATIONS:
        assert declared[one.name].keys() >= {*one.scenarios, "audit", "rules"}
    assert {name for one in CONFIGURATIONS for name in one.scenarios} == set(SCENARIOS)


def test_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(write(read()))
    assert read(tmp_path / "t.toml") == read()


@pytest.mark.parametrize("text", ['["0.1"]\n', '["0.32.0".strange]\na = "b"\n', '["0.32.0".nixl]\nstrange = "b"\n'])
def test_table_that_names_what_there_is_not_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(ValueError, match=r"t\.toml"):
        read(tmp_path / "t.toml")


def test_start_that_was_refused_is_told_from_one_that_failed() -> None:
    log = (REAL / "refused" / "refused.log").read_text()
    assert pool_below_context(False, log).word == "refused to start"
    assert pool_below_context(False, "Killed").word == "ended"
    assert pool_below_context(True, log).word == "came up"


def test_script_tells_no_variable_of_others(tmp_path: Path) -> None:
    added = ENVIRON | {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5601", "OTHER": "secret"}
    script = Launch("decode", ("/somewhere/python", "-m", "m"), added, tmp_path / "x.log", SHOWN).script()
    assert "VLLM_HOST_IP=127.0.0.1" in script
    assert "OTHER" not in script
    assert "/somewhere" not in script


def test_pair_that_others_reach_is_at_risk(tmp_path: Path) -> None:
    """The same launch, with another --host: who reaches decode can name another request's pages."""
    folder = tmp_path / "nixl"
    folder.mkdir()
    for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": kv_role})
        command = ("python", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "1")
        words = (*command, "--kv-transfer-config", transfer)
        launch = Launch("decode", words, ENVIRON, folder / "x.log", SHOWN)
        (folder / f"{role}-launch.sh").write_text(launch.script())
        for kind in ("metrics.txt", "models.json", "version.json"):
            (folder / f"{role}-{kind}").write_bytes((REAL / "pair" / f"{role}-{kind}").read_bytes())
    assert bundles.audit(folder) == ("unknown", ())
    assert bundles.audit(_were_it_reachable(folder)) == ("at-risk", ("KVF702", "KVF704"))


def fake(leaks_at: int) -> web.Application:
    """A pair in one server, whose decode answers with A's text if the first block that is named is this."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        named = body.get("kv_transfer_params") or {}
        leaks = named.get("remote_block_ids", [[0]])[0][0] == leaks_at and not named.get("do_remote_decode")
        text = f" {SECRET} and Ingrid" if leaks else f" {OWN} and Oskar"
        reference = {"remote_block_ids": [[900, 901, 902]], "remote_engine_id": "e"}
        return web.json_response({"choices": [{"text": text}], "kv_transfer_params": reference})

    application = web.Application()
    application.router.add_post("/v1/completions", complete)
    return application


@pytest.mark.parametrize(("first", "word"), [(3, "leaked"), (50, "answered")])
def test_guess_names_other_blocks_by_ones_own_reference(first: int, word: str) -> None:
    async def guess() -> tuple[str, tuple[str, ...]]:
        async with TestServer(fake(first)) as server:
            assert server.port is not None
            client = Client(Pair({"prefill": server.port, "decode": server.port}, 0.0))
            try:
                seen = await scenarios.guessed(client)
            finally:
                await client.close()
            return seen.word, seen.evidence

    found, evidence = asyncio.run(guess())
    assert found == word
    assert "900" not in evidence[0]
