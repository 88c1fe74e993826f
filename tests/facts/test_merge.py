from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.assume import read_assumption
from kvfence.facts.fact import Evidence, Fact, Standing
from kvfence.facts.merge import merge
from kvfence.facts.model import Deployment, Environment, Kind, Seen, Sighting
from kvfence.knowledge.releases import Version, VersionRange
from tests.facts.conftest import fact, value


def sighting(kind: Kind, name: str, group: str = "d", *, source: str = "", **facts: object) -> Sighting:
    found = Sighting(source or f"{group}/{name}.{kind.name.lower()}", kind, name, group)
    found.facts = {key: fact(content, found.source) for key, content in facts.items()}
    return found


def log(name: str, **facts: object) -> Sighting:
    return sighting(Kind.LOG, name, **facts)  # type: ignore[arg-type]


def merged(*sightings: Sighting, assume: Sequence[str] = ()) -> Deployment:
    return merge(sightings, [read_assumption(text) for text in assume], [])


def names(deployment: Deployment) -> list[str]:
    return [worker.name for worker in deployment.workers]


def versions(lo: str, hi: str) -> VersionRange:
    return VersionRange(Version.parse(lo), Version.parse(hi))


def test_sources_of_one_name_in_one_group_are_one_worker() -> None:
    deployment = merged(log("prefill", role="prefill"), sighting(Kind.SERVER_INFO, "prefill", pool_tokens=1024))
    (worker,) = deployment.workers
    assert (worker.role, value(worker, keys.POOL_TOKENS)) == ("prefill", 1024)
    assert worker.sources == ("d/prefill.server_info", "d/prefill.log")


def test_one_name_in_two_groups_is_two_workers() -> None:
    one = sighting(Kind.LOG, "server", "a", pool_tokens=1)
    other = sighting(Kind.LOG, "server", "b", pool_tokens=2)
    assert sorted(names(merged(one, other))) == ["a/server", "b/server"]


def test_nameless_source_belongs_to_the_only_worker_of_its_group() -> None:
    (worker,) = merged(log("prefill", role="prefill"), sighting(Kind.SERVER_INFO, "", pool_tokens=7)).workers
    assert (worker.name, value(worker, keys.POOL_TOKENS)) == ("prefill", 7)


def test_nameless_source_among_several_workers_is_its_own() -> None:
    deployment = merged(log("a", pool_tokens=1), log("b", pool_tokens=2), sighting(Kind.SERVER_INFO, "", pool_tokens=7))
    assert len(deployment.workers) == 3


def test_nameless_worker_is_called_after_its_directory() -> None:
    assert names(merged(sighting(Kind.LOG, "", "runs/decode-3", pool_tokens=1))) == ["decode-3"]


def test_live_answer_is_believed_before_a_log() -> None:
    live = sighting(Kind.SERVER_INFO, "w", source="http://h:1/server_info", pool_tokens=8)
    (worker,) = merged(log("w", pool_tokens=4), live).workers
    assert value(worker, keys.POOL_TOKENS) == 8
    (difference,) = worker.disagreements
    assert (difference.first.value, difference.second.value) == (8, 4)


def test_saved_answer_and_log_of_another_start_leave_the_fact_open() -> None:
    saved = sighting(Kind.SERVER_INFO, "w", pool_tokens=8, context_len=4096)
    (worker,) = merged(log("w", pool_tokens=4, context_len=4096), saved).workers
    assert worker.get(keys.POOL_TOKENS) is None
    assert value(worker, keys.CONTEXT_LEN) == 4096
    assert [(d.key, d.first.value, d.second.value) for d in worker.disagreements] == [(keys.POOL_TOKENS, 8, 4)]


def test_equal_values_join_their_evidence() -> None:
    (worker,) = merged(log("w", pool_tokens=4), sighting(Kind.SERVER_INFO, "w", pool_tokens=4)).workers
    found = worker.get(keys.POOL_TOKENS)
    assert found is not None
    assert [evidence.source for evidence in found.evidence] == ["d/w.server_info", "d/w.log"]


def test_what_identifies_or_passes_is_no_disagreement() -> None:
    one = log("w", port=1, random_seed=1, max_running_requests=8, retractions=1)
    other = sighting(Kind.SERVER_INFO, "w", port=2, random_seed=2, max_running_requests=4, retractions=2)
    (worker,) = merged(one, other).workers
    assert worker.disagreements == ()


def test_highest_usage_counts() -> None:
    one, other = log("w", peak_token_usage=0.99), sighting(Kind.METRICS, "w", peak_token_usage=0.1)
    assert value(merged(one, other).workers[0], keys.PEAK_USAGE) == 0.99


def test_auto_gives_way_to_what_was_resolved() -> None:
    for first, second in (("auto", "fp8_e4m3"), ("fp8_e4m3", "auto")):
        one = sighting(Kind.SERVER_INFO, "w", kv_cache_dtype=first)
        (worker,) = merged(one, log("w", kv_cache_dtype=second)).workers
        assert value(worker, keys.KV_DTYPE) == "fp8_e4m3"
        assert worker.disagreements == ()


def test_two_spellings_of_one_backend_agree() -> None:
    one = log("w", disaggregation_transfer_backend="mooncake")
    other = sighting(Kind.LAUNCH, "w", disaggregation_transfer_backend="mooncake_tcp")
    assert merged(one, other).workers[0].disagreements == ()


def test_releases_are_narrowed_by_every_source() -> None:
    one = log("w", version=versions("0.5.13", "0.5.21"))
    other = sighting(Kind.SERVER_INFO, "w", version=versions("0.5.19", "0.5.23"))
    (worker,) = merged(one, other).workers
    assert value(worker, keys.VERSION) == versions("0.5.19", "0.5.21")


def test_releases_that_exclude_each_other_are_a_disagreement() -> None:
    one = log("w", version=versions("0.5.13", "0.5.18"))
    other = sighting(Kind.SERVER_INFO, "w", source="http://h/server_info", version=versions("0.5.23", "0.5.23"))
    (worker,) = merged(one, other).workers
    assert value(worker, keys.VERSION) == versions("0.5.23", "0.5.23")
    assert [d.key for d in worker.disagreements] == [keys.VERSION]


def test_launch_script_speaks_for_the_server_of_its_role() -> None:
    script = sighting(Kind.LAUNCH, "start", role="decode", kv_canary="log")
    deployment = merged(log("a", role="prefill"), log("b", role="decode"), script)
    assert {w.name: value(w, keys.CANARY) for w in deployment.workers} == {"a": None, "b": "log"}


def test_launch_script_speaks_for_every_server_it_fits() -> None:
    script = sighting(Kind.LAUNCH, "start", role="prefill", kv_canary="log")
    servers = [log(f"p{n}", role="prefill", pool_tokens=n) for n in range(3)]
    assert [value(w, keys.CANARY) for w in merged(*servers, script).workers] == ["log"] * 3


def test_launch_script_of_another_port_or_model_is_its_own() -> None:
    server = log("a", role="prefill", port=1, served_model_name="m")
    for other in ({"port": 2}, {"port": 1, "served_model_name": "n"}):
        deployment = merged(server, sighting(Kind.LAUNCH, "start", role="prefill", **other))
        assert len(deployment.workers) == 2


def test_two_scripts_that_fit_speak_for_nobody() -> None:
    scripts = [sighting(Kind.LAUNCH, f"s{n}", role="prefill", kv_canary=mode) for n, mode in enumerate(("log", "none"))]
    deployment = merged(log("a", role="prefill"), *scripts)
    assert len(deployment.workers) == 3
    assert next(value(w, keys.CANARY) for w in deployment.workers if w.name == "a") is None


def test_router_script_is_never_a_server() -> None:
    deployment = merged(log("a", role="prefill"), sighting(Kind.LAUNCH, "router", role="router"))
    assert [w.role for w in deployment.workers] == ["router", "prefill"]


def test_environment_alone_is_that_of_the_only_server() -> None:
    process = sighting(Kind.PROCESS, "environ")
    process.environment = Environment(Seen.WHOLE, {"A": fact("1")}, source="environ")
    assert merged(log("a", role="prefill"), process).workers[0].environment.seen is Seen.WHOLE
    two = merged(log("a", role="prefill"), log("b", role="decode"), process)
    assert Seen.WHOLE not in [w.environment.seen for w in two.workers if w.role]


def test_environment_of_the_process_wins_over_the_script() -> None:
    script, process = sighting(Kind.LAUNCH, "w"), sighting(Kind.PROCESS, "w")
    script.environment = Environment(Seen.LAUNCH, {"A": fact("script"), "B": fact("b")}, source="s")
    process.environment = Environment(Seen.WHOLE, {"A": fact("process")}, source="p")
    environment = merged(script, process).workers[0].environment
    assert {name: one.value for name, one in environment.variables.items()} == {"A": "process"}
    assert (environment.seen, environment.source) == (Seen.WHOLE, "p")


def test_what_the_process_lacks_a_script_does_not_set() -> None:
    process, script = sighting(Kind.PROCESS, "prefill"), sighting(Kind.LAUNCH, "prefill", role="prefill")
    process.environment = Environment(Seen.WHOLE)
    script.environment = Environment(Seen.LAUNCH, {"MC_TRANSFER_TIMEOUT": fact("9", "run.sh")}, {"OTHER"})
    (worker,) = merged(process, script).workers
    assert (worker.environment.seen, worker.environment.variables) == (Seen.WHOLE, {})
    assert not worker.environment.unresolved


def test_command_without_a_port_is_of_the_default_one() -> None:
    script = sighting(Kind.LAUNCH, "run", "a", role="prefill", port=30000)
    script.facts["port"] = Fact(30000, script.facts["port"].evidence, Standing.RELEASE_DEFAULT)
    server = sighting(Kind.LOG, "w", "b", role="prefill", port=30120, pool_tokens=7)
    assert len(merged(script, server).workers) == 2


def test_live_answer_and_log_of_one_process_are_one_worker() -> None:
    live = sighting(Kind.SERVER_INFO, "h:1", "http://h:1", random_seed=7, port=1, role="prefill", pool_tokens=8)
    deployment = merged(live, log("prefill", random_seed=7, port=1, role="prefill", context_len=4))
    (worker,) = deployment.workers
    assert (value(worker, keys.POOL_TOKENS), value(worker, keys.CONTEXT_LEN)) == (8, 4)


def test_live_answer_and_log_of_one_address_are_one_worker() -> None:
    live = sighting(Kind.SERVER_INFO, "10.0.0.1:30000", "http://10.0.0.1:30000", pool_tokens=8)
    assert len(merged(live, log("p", host="10.0.0.1", port=30000, context_len=4)).workers) == 1


def test_servers_that_listen_everywhere_are_not_one_for_their_port() -> None:
    live = sighting(Kind.SERVER_INFO, "h:1", "http://h:1", host="0.0.0.0", port=1, pool_tokens=8)
    assert len(merged(live, log("p", host="0.0.0.0", port=1, context_len=4)).workers) == 2


def test_loopback_is_another_machine_on_every_machine() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        one = sighting(Kind.SERVER_INFO, "", "p", host=host, port=30000, role="prefill")
        other = sighting(Kind.LOG, "server", "d", host=host, port=30000)
        assert len(merged(one, other).workers) == 2


def test_seed_and_port_that_many_share_make_no_one_worker() -> None:
    for told in ({"pool_tokens": 1024}, {"role": "decode"}, {"context_len": 7}):
        known = {"random_seed": 42, "port": 30000, "pool_tokens": 8192, "context_len": 9, "role": "prefill"}
        one = sighting(Kind.SERVER_INFO, "", "a", **known)  # type: ignore[arg-type]
        other = sighting(Kind.LOG, "server", "b", **{**known, **told})  # type: ignore[arg-type]
        assert len(merged(one, other).workers) == 2


def test_saved_answer_of_another_start_takes_its_limit_with_it() -> None:
    saved = sighting(Kind.SERVER_INFO, "prefill", pool_tokens=8192, max_input_len=4090)
    (worker,) = merged(saved, log("prefill", pool_tokens=1024)).workers
    assert value(worker, keys.MAX_INPUT_LEN) is None


def test_two_logs_of_one_address_stay_two() -> None:
    logs = [log(name, host="127.0.0.1", port=1, pool_tokens=n) for n, name in enumerate("ab")]
    assert len(merged(*logs).workers) == 2


def test_identical_workers_become_one_class() -> None:
    many = [log(f"prefill-{n}", role="prefill", pool_tokens=4, port=30000 + n, random_seed=n) for n in range(300)]
    (worker,) = merged(*many).workers
    assert worker.name == "prefill-0"
    assert worker.members == tuple(f"prefill-{n}" for n in range(300))
    assert len(worker.sources) == 300


def test_worker_that_differs_is_not_hidden_in_a_class() -> None:
    many = [log(f"p-{n}", role="prefill", pool_tokens=3 if n == 77 else 4) for n in range(100)]
    assert sorted((w.name, len(w.members)) for w in merged(*many).workers) == [("p-0", 99), ("p-77", 1)]


def test_class_keeps_the_highest_usage_of_its_members() -> None:
    many = [log(f"p-{n}", role="prefill", peak_token_usage=n / 10, retractions=n) for n in range(10)]
    (worker,) = merged(*many).workers
    assert (value(worker, keys.PEAK_USAGE), value(worker, keys.RETRACTIONS)) == (0.9, 9)


def test_workers_with_other_switches_are_not_alike() -> None:
    one, other = log("p-0", role="prefill"), log("p-1", role="prefill")
    other.environment = Environment(Seen.WHOLE, {"A": fact("1")}, source="e")
    assert len(merged(one, other).workers) == 2


def test_names_are_made_distinct() -> None:
    many = [sighting(Kind.LOG, "server", f"x{n}", source="same/server.log", pool_tokens=n) for n in range(4)]
    found = names(merged(*many))
    assert len(set(found)) == 4


def test_workers_are_ordered_by_role_and_number() -> None:
    told = [("decode-0", "decode"), ("prefill-10", "prefill"), ("prefill-2", "prefill"), ("x", None), ("r", "router")]
    many = [log(name, pool_tokens=n, **({"role": role} if role else {})) for n, (name, role) in enumerate(told)]
    assert names(merged(*many)) == ["r", "prefill-2", "prefill-10", "decode-0", "x"]


def test_role_is_drawn_from_a_name_only_if_nothing_else_tells_it() -> None:
    (worker,) = merged(log("my-decode-0", pool_tokens=1)).workers
    role = worker.get(keys.ROLE)
    assert role is not None
    assert (role.value, role.standing) == ("decode", Standing.STATED)
    assert merged(log("my-decode-0", role="prefill")).workers[0].role == "prefill"
    assert merged(log("prefill-and-decode", pool_tokens=1)).workers[0].role is None
    assert merged(log("prefilled", pool_tokens=1)).workers[0].role is None


def test_role_given_for_an_input_is_held_against_what_was_observed() -> None:
    given = log("w", role="decode")
    given.stated_role = "prefill"
    (worker,) = merged(given).workers
    assert worker.role == "decode"
    assert [(d.first.value, d.second.value) for d in worker.disagreements] == [("decode", "prefill")]


def test_assumption_fills_what_is_not_known_and_never_replaces_what_was_seen() -> None:
    deployment = merged(log("a", role="prefill", pool_tokens=4), log("b", role="decode"), assume=["pool_tokens=9"])
    assert {w.name: value(w, keys.POOL_TOKENS) for w in deployment.workers} == {"a": 4, "b": 9}
    assert [len(w.disagreements) for w in deployment.workers] == [1, 0]


def test_assumption_for_a_role_reaches_only_that_role() -> None:
    deployment = merged(log("a", role="prefill"), log("b", role="decode"), assume=["decode.pool_tokens=9"])
    assert {w.name: value(w, keys.POOL_TOKENS) for w in deployment.workers} == {"a": None, "b": 9}


def test_assumed_role_lets_a_later_assumption_for_that_role_reach_it() -> None:
    (worker,) = merged(log("w", pool_tokens=1), assume=["role=decode", "decode.page_size=64"]).workers
    assert (worker.role, value(worker, keys.PAGE_SIZE)) == ("decode", 64)


def test_notes_are_said_once() -> None:
    one, other = log("a", pool_tokens=1), log("b", pool_tokens=2)
    one.notes, other.notes = ["x", "y"], ["x"]
    assert merge([one, other], [], ["first", "x"]).notes == ("first", "x", "y")


def test_nothing_merges_to_nothing() -> None:
    assert merged().workers == ()


ANY = st.builds(
    lambda kind, name, group, facts: sighting(kind, name, group, **facts),
    st.sampled_from(list(Kind)),
    st.sampled_from(["", "a", "b", "prefill-1"]),
    st.sampled_from(["d", "e", "http://h:1"]),
    st.dictionaries(st.sampled_from(["pool_tokens", "port", "random_seed"]), st.integers(1, 3), max_size=3),
)


@given(st.lists(ANY, max_size=8))
def test_every_source_ends_in_a_worker_and_no_two_share_a_name(sightings: list[Sighting]) -> None:
    sources = {one.source for one in sightings}
    deployment = merged(*sightings)
    assert {source for worker in deployment.workers for source in worker.sources} == sources
    members = [member for worker in deployment.workers for member in worker.members]
    assert len(set(members)) == len(members)


def test_evidence_is_kept_short() -> None:
    assert len(Evidence("s", "x" * 10_000).text) == 240
    assert Fact(1, (Evidence("s", "t", 3),)).evidence[0].place == "s:3"
