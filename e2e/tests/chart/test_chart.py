"""The rendered chart: the objects that it makes of values, and the values that it refuses.

Needs helm, but no cluster.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from seriatim_spark.pipelines import commands

from tools.chart import GOLDEN, ROOT, VALUES, HelmError, find_helm, render, run_helm

pytestmark = pytest.mark.skipif(find_helm() is None, reason="there is no helm: `make e2e-cluster` builds one")

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the definitions are long, and C reads them ten times faster
SETS = sorted(VALUES.glob("*.yaml"))
ALERTS = yaml.safe_load((ROOT / "files" / "alerts" / "alerts.yaml").read_text())
DASHBOARDS = sorted((ROOT / "files" / "dashboards").glob("*.json"))
SAMPLES = sorted((ROOT / "docs" / "samples" / "spark").glob("*.yaml"))
RUNBOOKS = ROOT / "docs" / "operating" / "runbooks"


rendered = cache(render)


def documents(*arguments: str) -> list[dict[str, Any]]:
    """Render the chart, once for the same values. Return its manifests."""
    return [document for document in yaml.load_all(rendered(*arguments), Loader=LOADER) if document]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the manifests of one kind, by name."""
    return {item["metadata"]["name"]: item for item in manifests if item["kind"] == kind}


# ---- what is packed (`make chart-check` compares what is made from something else) ----


def test_there_are_golden_files_for_five_sets_of_values() -> None:
    assert len(SETS) >= 5
    assert [path.name for path in sorted(GOLDEN.glob("*.yaml"))] == [path.name for path in SETS]


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_helm_lint_finds_nothing(values: Path) -> None:
    said = run_helm("lint", ".", "--strict", "--kube-version", "1.33.0", "--namespace", "shop", "--values", str(values))
    assert "0 chart(s) failed" in said


def test_the_package_is_the_chart_and_nothing_else(tmp_path: Path) -> None:
    run_helm("package", ".", "--destination", str(tmp_path))
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as package:
        tops = {name.split("/")[1] for name in package.getnames()}
    assert tops == {
        "Chart.yaml",
        "LICENSE",
        "NOTICE",
        "README.md",
        "files",
        "templates",
        "values.schema.json",
        "values.yaml",
    }, "a new path at the root belongs into .helmignore"


def test_the_package_leaves_out_what_commands_write_at_the_root() -> None:
    """Runs of the demos and suites write megabytes there, and Helm refuses a release of more than one."""
    written = [line for line in (ROOT / ".gitignore").read_text().split() if line.startswith("/")] + ["build/", "dist/"]
    left_out = [line.strip("/") for line in (ROOT / ".helmignore").read_text().splitlines() if line.startswith("/")]
    packed = [line for line in written if not any(fnmatch(line.strip("/"), pattern) for pattern in left_out)]
    assert packed == [], "they belong into .helmignore"


# ---- what is refused ----


def closed_paths(schema: dict[str, Any], root: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the path of every name in the schema beside which a misspelt name must be refused."""
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    if "properties" not in schema:
        return
    assert schema.get("additionalProperties") is False, f"{'.'.join(path)} is open"
    for name, inner in schema["properties"].items():
        yield (*path, name)
        yield from closed_paths(inner, root, (*path, name))


SCHEMA = json.loads((ROOT / "values.schema.json").read_text())
KNOWN = sorted(closed_paths(SCHEMA, SCHEMA))


def test_every_default_is_known_to_the_schema_and_commented_in_the_values() -> None:
    defaults = yaml.safe_load((ROOT / "values.yaml").read_text())

    def names(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, inner in node.items() if isinstance(node, dict) else ():
            yield (*path, name)
            yield from names(inner, (*path, name))

    closed = {path[:-1] for path in KNOWN}
    assert {path for path in names(defaults) if path[:-1] in closed} <= set(KNOWN)


def test_each_misspelt_value_is_refused_by_its_name(tmp_path: Path) -> None:
    # One rendering for each closed object, with all its names misspelt, because Helm reports every misspelt name.
    parents = {path[:-1] for path in KNOWN}
    assert len(KNOWN) > 120
    for parent in sorted(parents):
        names = [path[-1] for path in KNOWN if path[:-1] == parent]
        inner: Any = {f"{name}x": "something" for name in names}
        for name in reversed(parent):
            inner = {name: inner}
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump(inner))
        with pytest.raises(HelmError) as refused:
            render("--values", str(values))
        missing = [name for name in names if f"'{name}x'" not in str(refused.value)]
        assert missing == [], f"{'.'.join(parent)}: {refused.value}"


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("etcd.members=2", "/etcd/members"),
        ("operator.replicas=-1", "/operator/replicas"),
        ("operator.logLevel=verbose", "/operator/logLevel"),
        ("images.pullPolicy=Sometimes", "/images/pullPolicy"),
        ("rbac.scope=cluster", "/rbac/scope"),
        ("etcd.storage.size=large", "/etcd/storage/size"),
        ("etcd.spread=Maybe", "/etcd/spread"),
        ("etcd.settings=log-level", "/etcd/settings"),
        ("etcd.create=false,etcd.endpoints={https://etcd:2379}", "/etcd/endpoints/0"),
        ("etcd.tls.days=0", "/etcd/tls/days"),
        ("etcd.snapshots.schedule=hourly", "/etcd/snapshots/schedule"),
        ("etcd.snapshots.to=/backups", "/etcd/snapshots/to"),
        ("cluster.name=Orders", "/cluster/name"),
        ("cluster.spec.groups=0", "/cluster/spec/groups"),
        ("cluster.spec.changeApproval=manual", "/cluster/spec/changeApproval"),
        ("crds.keep=maybe", "/crds/keep"),
        ("monitoring.rules=true", "/monitoring/rules"),
        ("monitoring.runbookUrl=runbooks/", "/monitoring/runbookUrl"),
        ("tests.messages=0", "/tests/messages"),
        ("watchNamespaces={a,a}", "/watchNamespaces"),
        ("spark.pipelines[0].name=a,spark.pipelines[0].run=archives", "/spark/pipelines/0/run"),
        ("spark.pipelines[0].name=a_b,spark.pipelines[0].run=archive", "/spark/pipelines/0/name"),
        ("spark.driverMemory=lots", "/spark/driverMemory"),
        ("spark.submit.executors=0", "/spark/submit/executors"),
    ],
)
def test_a_wrong_value_is_refused_at_its_place(setting: str, what: str) -> None:
    with pytest.raises(HelmError) as refused:
        render("--set", setting)
    assert f"at '{what}'" in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "what_to_do"),
    [
        ("cluster.create=true", "cluster.create needs cluster.spec.storage.storageClassName"),
        ("etcd.endpoints={etcd:2379}", "set etcd.create=false"),
        ("etcd.tlsSecret=x", "use etcd.tls.clientSecret"),
        ("etcd.tls.peerSecret=x", "give all three"),
        ("etcd.settings.heartbeat-interval=120", "election-timeout (500 ms) must be at least five times"),
        ("etcd.settings.election-timeout=499", "at least five times heartbeat-interval (100 ms)"),
        ("etcd.settings.election-timeout=50001", "at most 50000"),
        ("etcd.settings.heartbeat-interval=fast", "at least five times heartbeat-interval (0 ms)"),
        ("etcd.snapshots.schedule=@daily", "needs etcd.snapshots.to"),
        (
            "etcd.create=false,etcd.endpoints={etcd:2379},etcd.snapshots.schedule=@daily,etcd.snapshots.to=x",
            "needs backups of its own",
        ),
        (
            "cluster.create=true,etcd.create=false,cluster.spec.storage.storageClassName=x",
            "set etcd.create=true, or etcd.endpoints",
        ),
        (
            "cluster.create=true,cluster.spec.storage.storageClassName=x,watchNamespaces={billing}",
            "is not among watchNamespaces: add it",
        ),
        ("spark.pipelines[0].name=a,spark.pipelines[0].run=archive", "give cluster, or options.bootstrap"),
        (
            "spark.pipelines[0].name=submit,spark.pipelines[0].run=archive,spark.pipelines[0].cluster=orders",
            "give each pipeline another name, and none the name submit",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_a_remedy(setting: str, what_to_do: str) -> None:
    with pytest.raises(HelmError, match=re.escape(what_to_do)):
        render("--set", setting)


# ---- what is made of them ----


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_every_pod_keeps_to_the_restricted_standard(values: Path) -> None:
    seen = 0
    for spec in pods(documents("--values", str(values))):
        seen += 1
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            # Spark itself sets the resources of its executors.
            assert container["name"] == "executor" or "memory" in container["resources"]["limits"], container["name"]
    assert seen >= 1


def pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return the specs of all pods of these manifests, with those that Spark makes of a template."""
    for item in manifests:
        if item["kind"] == "ConfigMap":
            texts = [text for name, text in item.get("data", {}).items() if name in ("driver.yaml", "executor.yaml")]
            yield from pods([yaml.safe_load(text) for text in texts])
        spec = item.get("spec", {})
        if item["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        spec = spec if item["kind"] == "Pod" else spec.get("template", {}).get("spec")
        if spec and "containers" in spec:
            yield spec


def tolerated(*settings: str) -> dict[str, int | None]:
    """How long the operator's pod stays on a node with each taint, in seconds."""
    deployment = of_kind(documents(*settings), "Deployment")["seriatim-operator"]
    return {
        each["key"]: each.get("tolerationSeconds") for each in deployment["spec"]["template"]["spec"]["tolerations"]
    }


def test_the_operators_pod_leaves_a_lost_node_in_half_a_minute() -> None:
    lost = {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}
    assert tolerated() == lost
    own = "operator.tolerations[{}].{}={}".format
    assert tolerated("--set", own(0, "key", "control")) == {"control": None, **lost}
    mine = ",".join(
        own(0, name, value)
        for name, value in (
            ("key", "node.kubernetes.io/unreachable"),
            ("effect", "NoExecute"),
            ("tolerationSeconds", 5),
        )
    )
    assert tolerated("--set", mine) == {**lost, "node.kubernetes.io/unreachable": 5}


def test_definitions_are_kept_unless_told_otherwise_and_can_be_left_out() -> None:
    kept = of_kind(documents(), "CustomResourceDefinition")
    assert len(kept) == len(list((ROOT / "crds").glob("*.yaml"))) == 5
    assert all(item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for item in kept.values())
    let_go = of_kind(documents("--set", "crds.keep=false"), "CustomResourceDefinition")
    assert not any("helm.sh/resource-policy" in item["metadata"]["annotations"] for item in let_go.values())
    assert not of_kind(documents("--set", "crds.install=false"), "CustomResourceDefinition")
    for name, item in kept.items():
        plural, _, group = name.partition(".")
        original = yaml.safe_load((ROOT / "crds" / f"{group}_{plural}.yaml").read_text())
        assert item["spec"] == original["spec"]


def test_an_install_without_administrators_rights_makes_nothing_outside_of_its_namespaces() -> None:
    manifests = documents("--values", str(VALUES / "namespaced.yaml"))
    assert not [item["kind"] for item in manifests if item["kind"].startswith("Cluster")]
    assert {item["metadata"]["namespace"] for item in manifests} == {"shop", "billing"}
    watched = [
        variable["value"]
        for variable in of_kind(manifests, "Deployment")["seriatim-operator"]["spec"]["template"]["spec"]["containers"][
            0
        ]["env"]
        if variable["name"] == "SERIATIM_OPERATOR_WATCH_NAMESPACES"
    ]
    assert watched == ["shop,billing"]


def test_no_role_has_a_wildcard_and_nobody_may_make_pods_run_as_others() -> None:
    for item in documents():
        for rule in item.get("rules", []) if item["kind"] in ("Role", "ClusterRole") else []:
            assert "*" not in rule["verbs"]
            assert "*" not in rule["apiGroups"]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
            reads_only = set(rule["verbs"]) <= {"get", "list", "watch"}
            assert reads_only or "*" not in rule["resources"], rule


def test_etcds_certificates_fit_and_a_brokers_opens_no_door_between_members() -> None:
    secrets = of_kind(documents(), "Secret")

    def certificate(secret: str, key: str = "tls.crt") -> x509.Certificate:
        return x509.load_pem_x509_certificate(base64.b64decode(secrets[secret]["data"][key]))

    clients, peers = certificate("seriatim-etcd-client-ca"), certificate("seriatim-etcd-peer-ca")
    for leaf, authority in (
        ("seriatim-etcd-server-tls", clients),
        ("seriatim-etcd-client-tls", clients),
        ("seriatim-etcd-peer-tls", peers),
    ):
        certificate(leaf).verify_directly_issued_by(authority)
        assert certificate(leaf, "ca.crt") == authority
    with pytest.raises((InvalidSignature, ValueError)):
        certificate("seriatim-etcd-client-tls").verify_directly_issued_by(peers)
    for leaf in ("seriatim-etcd-server-tls", "seriatim-etcd-peer-tls"):
        names = certificate(leaf).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = names.get_values_for_type(x509.DNSName)
        assert {f"seriatim-etcd-{i}.seriatim-etcd.shop.svc" for i in range(3)} <= set(hosts)


def test_the_cluster_of_a_release_is_applied_by_a_hook_and_is_none_of_helms_own_objects() -> None:
    manifests = documents("--values", str(VALUES / "first-try.yaml"))
    assert not of_kind(manifests, "BrokerCluster"), (
        "Helm would check its kind before it is there, and delete it one day"
    )
    cluster = yaml.safe_load(of_kind(manifests, "ConfigMap")["seriatim-cluster"]["data"]["cluster.yaml"])
    assert cluster["metadata"]["name"] == "orders"
    assert cluster["spec"] == {
        "groups": 2,
        "storage": {"storageClassName": "local-path", "size": "5Gi"},
        "etcd": {
            "endpoints": ["seriatim-etcd-0.seriatim-etcd.shop.svc:2379"],
            "tlsSecret": "seriatim-etcd-client-tls",
        },
    }
    hook = of_kind(manifests, "Job")["seriatim-cluster"]
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    back = of_kind(manifests, "Job")["seriatim-cluster-rollback"]
    assert back["metadata"]["annotations"]["helm.sh/hook"] == "post-rollback"
    flags = [each["spec"]["template"]["spec"]["containers"][0]["args"] for each in (hook, back)]
    assert ["--remove-no-groups" in each for each in flags] == [False, True]
    account = hook["spec"]["template"]["spec"]["serviceAccountName"]
    rules = of_kind(manifests, "Role")[account]["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"create", "get", "patch"}


def test_the_number_of_groups_is_left_out_unless_it_is_named() -> None:
    manifests = documents("--set", "cluster.create=true,cluster.spec.storage.storageClassName=local-path")
    cluster = yaml.safe_load(of_kind(manifests, "ConfigMap")["seriatim-cluster"]["data"]["cluster.yaml"])
    assert "groups" not in cluster["spec"], "another default in a later chart would change the number"


def test_monitoring_comes_when_its_kinds_are_there_or_when_told() -> None:
    def kinds(*arguments: str) -> set[str]:
        return {item["kind"] for item in documents(*arguments)} & {"PodMonitor", "PrometheusRule"}

    known = ("--api-versions", "monitoring.coreos.com/v1/PodMonitor")
    assert kinds() == set()
    assert kinds(*known) == {"PodMonitor"}
    assert kinds(*known, "--set", "monitoring.podMonitors=Never") == set()
    assert kinds("--set", "monitoring.rules=Always") == {"PrometheusRule"}


def test_snapshots_of_etcd_are_taken_without_a_shell_and_without_rights() -> None:
    assert not of_kind(documents(), "CronJob"), "off unless a schedule is given"

    def job(values: str) -> dict[str, Any]:
        crons = of_kind(documents("--values", str(VALUES / values)), "CronJob")
        [cron] = (item for name, item in crons.items() if name.endswith("-etcd-snapshots"))
        spec: dict[str, Any] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert "serviceAccountName" not in spec
        assert spec["automountServiceAccountToken"] is False
        take, check = spec["initContainers"]
        assert take["command"] == ["/usr/local/bin/etcdctl"]
        assert check["command"] == ["/usr/local/bin/etcdutl"]
        assert take["args"][:3] == ["snapshot", "save", "/snapshot/etcd.db"]
        for container in (take, check):
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        return spec

    spec = job("first-try.yaml")
    [keep] = spec["containers"]
    assert "--to=/snapshots" in keep["args"]
    claims = [volume["persistentVolumeClaim"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"claimName": "etcd-snapshots"}]
    spec = job("production.yaml")
    [keep] = spec["containers"]
    assert "--to=s3://backups/seriatim" in keep["args"]
    assert keep["envFrom"] == [{"secretRef": {"name": "backups"}}]
    assert not [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]


def test_a_restore_waits_for_a_person_and_keeps_what_was_there() -> None:
    manifests = documents("--values", str(VALUES / "first-try.yaml"))
    cron = of_kind(manifests, "CronJob")["seriatim-etcd-restore"]["spec"]
    assert cron["suspend"] is True
    spec = cron["jobTemplate"]["spec"]["template"]["spec"]
    [get], [restore] = spec["initContainers"], spec["containers"]
    assert "--set-aside=/var/lib/etcd/data" in get["args"]
    assert restore["command"] == ["/usr/local/bin/etcdutl"]
    assert {"--bump-revision=1000000000", "--mark-compacted", "--data-dir=/var/lib/etcd/data"} <= set(restore["args"])
    settings = yaml.safe_load(of_kind(manifests, "ConfigMap")["seriatim-etcd"]["data"]["etcd.yaml"])
    assert f"--initial-cluster-token={settings['initial-cluster-token']}" in restore["args"]
    assert f"--initial-cluster={settings['initial-cluster'].split(',')[0]}" in restore["args"]
    assert spec["automountServiceAccountToken"] is False


# ---- Spark ----


def test_a_pipeline_has_its_options_its_certificate_and_its_volume() -> None:
    manifests = documents("--values", str(VALUES / "pipelines.yaml"))
    stream = of_kind(manifests, "Deployment")["seriatim-spark-archive"]["spec"]
    assert stream["strategy"] == {"type": "Recreate"}
    (driver,) = stream["template"]["spec"]["containers"]
    argv = driver["args"]
    begin = argv.index("/opt/seriatim/pipelines.py")
    assert argv[argv.index("--master") + 1] == "k8s://https://kubernetes.default.svc"
    assert argv[begin + 1] == "archive"
    assert {"--bootstrap=orders.shop.svc:7100", "--tls-ca=/etc/seriatim/tls/ca.crt", "--every=1 minute"} <= set(argv)
    mounts = {mount["name"]: mount["mountPath"] for mount in driver["volumeMounts"]}
    assert mounts["data"] == "/data"
    template = yaml.safe_load(of_kind(manifests, "ConfigMap")["seriatim-spark-archive"]["data"]["executor.yaml"])
    assert {volume["name"] for volume in template["spec"]["volumes"]} >= {"data", "tls", "spark-local-dir-1"}
    assert template["spec"]["automountServiceAccountToken"] is False

    scheduled = of_kind(manifests, "CronJob")["seriatim-spark-audit"]["spec"]
    assert scheduled["schedule"] == "0 3 * * *"
    spec = scheduled["jobTemplate"]["spec"]["template"]["spec"]
    argv = spec["containers"][0]["args"]
    assert "local[2,4]" in argv
    assert not [word for word in argv if word.startswith(("--tls", "--json"))]
    assert [word for word in argv if word.startswith("--option=")] == [
        "--option=startingTimestamp=2026-01-31T10:00Z", "--option=readTimeout=10s",
    ]  # fmt: skip
    assert "--per-key" in argv
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("values", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_becomes_a_command_line_that_the_pipeline_takes(values: Path) -> None:
    (spec,) = pods([item for item in documents("--values", str(values)) if "spark" in item["metadata"]["name"]
                    and item["kind"] != "ConfigMap"])  # fmt: skip
    argv = spec["containers"][0]["args"]
    name, *arguments = argv[argv.index("/opt/seriatim/pipelines.py") + 1 :]
    assert name == values.stem
    commands.main.commands[name].make_context(name, arguments)


def test_each_pipeline_has_a_sample_and_is_one_that_the_chart_knows() -> None:
    pipelines = set(commands.main.commands) - {"path"}
    assert {path.stem for path in SAMPLES} == pipelines
    schema = json.loads((ROOT / "values.schema.json").read_text())
    runs = schema["properties"]["spark"]["properties"]["pipelines"]["items"]["properties"]["run"]["enum"]
    assert set(runs) == pipelines


def test_prometheus_reads_the_progress_of_a_pipeline_where_its_driver_tells_it() -> None:
    manifests = documents("--values", str(VALUES / "pipelines.yaml"), "--set", "monitoring.podMonitors=Always")
    (driver,) = of_kind(manifests, "Deployment")["seriatim-spark-archive"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in driver["ports"]}
    assert f"--metrics-listen=$(POD_IP):{ports['progress']}" in driver["args"]
    endpoints = of_kind(manifests, "PodMonitor")["seriatim-spark"]["spec"]["podMetricsEndpoints"]
    assert ("progress", "/metrics") in {(one["port"], one["path"]) for one in endpoints}
    audit = of_kind(manifests, "CronJob")["seriatim-spark-audit"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert [port["name"] for port in audit["containers"][0]["ports"]] == ["spark-ui"], "an audit has no such option"
    ingress = of_kind(manifests, "NetworkPolicy")["seriatim-spark"]["spec"]["ingress"]
    assert {"port": "progress"} in ingress[1]["ports"], "the namespace of Prometheus may read it"


def test_only_a_pipeline_that_changed_is_restarted() -> None:
    def restarted_by(*arguments: str) -> str:
        found = of_kind(documents("--values", str(VALUES / "pipelines.yaml"), *arguments), "Deployment")
        annotations = found["seriatim-spark-archive"]["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/pipeline"])

    assert restarted_by() == restarted_by("--set", "spark.pipelines[1].schedule=1 3 * * *")
    assert restarted_by() != restarted_by("--set", "spark.pipelines[0].options.every=2 minutes")
    assert restarted_by() != restarted_by("--set", "spark.executorMemory=2g"), "its properties hold that"


def test_without_spark_nothing_of_it_is_made() -> None:
    made_of_it = [item for item in documents() if "spark" in item["metadata"]["name"]]
    assert made_of_it == []
    refused = ("--values", str(VALUES / "pipelines.yaml"), "--set", "spark.enabled=false")
    assert [item for item in documents(*refused) if "spark" in item["metadata"]["name"]] == []


# ---- alerts and dashboards ----


def expressions() -> Iterator[tuple[str, str]]:
    """Return all queries to Prometheus, each with its place."""
    for alert in ALERTS:
        yield alert["name"], alert["expr"]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


TARGET_LABELS = {"namespace", "pod", "job", "seriatim_cluster", "seriatim_group", "le"}
"""Labels that Prometheus and the chart's PodMonitors add, and that of histograms."""


def exported() -> dict[str, set[str]]:
    """The labels of each metric that brokers and the operator export, by the name of its samples."""
    generator = str(ROOT / "docs" / "generate_metrics.py")
    done = subprocess.run([sys.executable, generator, "--json"], check=True, capture_output=True, text=True)
    found: dict[str, set[str]] = {}
    for metric in json.loads(done.stdout):
        endings = ("_bucket", "_sum", "_count") if metric["kind"] == "histogram" else ("",)
        found.update({metric["name"] + ending: set(metric["labels"]) for ending in endings})
    return found


def unknown(expression: str, known: Mapping[str, set[str]]) -> list[str]:
    """What an expression asks for that nothing exports: metrics, and labels in their braces."""
    found = []
    for name, matchers in re.findall(r"\b((?:seriatim|process)_[a-z_]+)(?:\{([^}]*)\})?", expression):
        if name in TARGET_LABELS:
            continue
        if name not in known:
            found.append(name)
            continue
        labels = set(re.findall(r"([a-z_]+)(?:=~|!~|!=|=)", matchers))
        found += [f"{name}{{{label}}}" for label in sorted(labels - known[name] - TARGET_LABELS)]
    return found


def test_alerts_and_dashboards_ask_for_metrics_that_there_are() -> None:
    spark = ROOT / "spark-on-k8s" / "src" / "seriatim_spark" / "pipelines" / "metrics.py"
    known = exported()
    for name in re.findall(r'"(seriatim_[a-z_]+)"', spark.read_text()):
        known |= {name: {"pipeline"}, f"{name}_total": {"pipeline"}}
    wrong = {where: found for where, expression in expressions() if (found := unknown(expression, known))}
    assert wrong == {}


def test_a_metric_or_a_label_that_nothing_exports_is_found() -> None:
    known = {"seriatim_ready": {"broker"}}
    assert unknown('sum by (seriatim_cluster) (seriatim_ready{broker="a",namespace=~"$namespace"})', known) == []
    assert unknown("seriatim_steady > 0", known) == ["seriatim_steady"]
    assert unknown('seriatim_ready{topic!="a"}', known) == ["seriatim_ready{topic}"]


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    for path in DASHBOARDS:
        panels = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels), path.name
        places = [
            (x, y)
            for panel in panels
            for at in [panel["gridPos"]]
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(set(places)) == len(places), path.name
        assert all(x < 24 for x, _ in places), path.name


def test_each_alert_has_a_page_that_tells_what_to_do_and_each_page_an_alert() -> None:
    wanted = {alert["runbook"] for alert in ALERTS}
    there = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert wanted == there
    for alert in ALERTS:
        page = (RUNBOOKS / f"{alert['runbook']}.md").read_text()
        assert alert["name"] in page
        assert "## What to do" in page
    rules = of_kind(documents("--set", "monitoring.rules=Always"), "PrometheusRule")["seriatim"]
    urls = {rule["annotations"]["runbook_url"] for rule in rules["spec"]["groups"][0]["rules"]}
    assert urls == {f"https://seriatim.dev/docs/operating/runbooks/{page}.md" for page in wanted}


def test_alerts_that_are_not_wanted_or_have_no_etcd_to_watch_are_left_out() -> None:
    def alerts(*arguments: str) -> set[str]:
        rules = of_kind(documents("--set", "monitoring.rules=Always", *arguments), "PrometheusRule")["seriatim"]
        return {rule["alert"] for rule in rules["spec"]["groups"][0]["rules"]}

    everything = {alert["name"] for alert in ALERTS}
    assert alerts() == everything
    assert alerts("--set", "monitoring.disabledAlerts={SeriatimLoopLag}") == everything - {"SeriatimLoopLag"}
    without = alerts("--set", "etcd.create=false,etcd.endpoints={etcd:2379}")
    assert without == {name for name in everything if "Etcd" not in name}
