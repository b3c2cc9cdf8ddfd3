"""Tests of the admission policy in deploy/helm/memtape/templates/admission.yaml: its expressions, as
the template has them, are evaluated for a table of pods. Run by tests/scenarios/cluster/chart.rs.

cel-python evaluates them: it is held against the conformance tests of CEL, and reads the YAML too.
"""

import copy
import json
import os
import pathlib
import re
import subprocess
import tempfile
import textwrap
import unittest

import celpy
import yaml

ROOT = pathlib.Path(__file__).parents[2]
TEMPLATE = (ROOT / "deploy/helm/memtape/templates/admission.yaml").read_text()
VALUES = yaml.safe_load((ROOT / "deploy/helm/memtape/values.yaml").read_text())
EXAMPLE = yaml.safe_load((ROOT / "deploy/helm/examples/training-pod.yaml").read_text())

ABOVE = VALUES["agent"]["tapeDir"]
TAPES = ABOVE + "/pods"
EXPR = "$(MEMTAPE_NAMESPACE)_$(MEMTAPE_POD)_$(MEMTAPE_POD_UID)"


HELPERS = (ROOT / "deploy/helm/memtape/templates/_helpers.tpl").read_text()
[OWN] = re.findall(r"\$own := (list .*?) -\}\}", HELPERS)
AGENT = (ROOT / "deploy/helm/memtape/templates/agent.yaml").read_text()


def value(path):
    """The default of a setting of the chart, such as `agent.tapeDir`."""
    found = VALUES
    for name in path.split("."):
        found = found[name]
    return found


def rendered(strict=False):
    """The policy as Helm makes it, by what stands between the braces."""
    admission = VALUES["admission"]
    made = {
        'printf "%s/pods" (clean .Values.agent.tapeDir) | toJson | toJson': json.dumps(json.dumps(TAPES)),
        'include "memtape.closedPaths" .': json.dumps(
            [value(of) for of in re.findall(r"\.Values\.([\w.]+)", OWN)] + admission["closedPaths"]
        ),
        "prepend .Values.admission.exemptNamespaces .Release.Namespace | toJson": json.dumps(
            ["memtape", *admission["exemptNamespaces"]]
        ),
        ".Values.admission.strict": json.dumps(strict),
        "$name": "memtape-memtape-tapes",
    }
    text = re.sub(r"^\s*\{\{-.*\}\}\n", "", TEMPLATE, flags=re.M)
    text = re.sub(r"\{\{ (.*?) \}\}", lambda found: made[found[1]], text)
    return list(yaml.safe_load_all(text))


class Policy:
    """Says what the API server says about an object."""

    def __init__(self, strict=False):
        self.spec = rendered(strict)[0]["spec"]

    def refusals(self, object, namespace="team-a"):
        request = {"namespace": namespace} if namespace else {}
        known = {"object": celpy.json_to_cel(object), "request": celpy.json_to_cel(request)}
        if not all(evaluate(of["expression"], known) for of in self.spec["matchConditions"]):
            return []
        known["variables"] = celpy.celtypes.MapType()
        for variable in self.spec["variables"]:
            name = celpy.celtypes.StringType(variable["name"])
            known["variables"][name] = evaluate(variable["expression"], known)
        rules = self.spec["validations"]
        return [of["message"] for of in rules if not evaluate(of["expression"], known)]


ENVIRONMENT, PROGRAMS = celpy.Environment(), {}


def evaluate(expression, known):
    if expression not in PROGRAMS:
        PROGRAMS[expression] = ENVIRONMENT.program(ENVIRONMENT.compile(expression))
    value = PROGRAMS[expression].evaluate(known)
    if isinstance(value, Exception):
        raise value
    return value


def example():
    return copy.deepcopy(EXAMPLE["spec"]["template"])


def changed(change):
    """The example after a change of `(pod, its training container, its mount of tapes)`."""
    pod = example()
    [train] = pod["spec"]["containers"]
    [mount] = [of for of in train["volumeMounts"] if of["name"] == "tapes"]
    change(pod["spec"], train, mount)
    return pod


def with_path(path):
    return {"spec": {"containers": [{"name": "c"}], "volumes": [host_path(path)]}}


def host_path(path, name="host"):
    return {"name": name, "hostPath": {"path": path}}


def variable(name, path):
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def env(train, name, value):
    train["env"] = [value if of["name"] == name else of for of in train["env"]]


def container(name, **mount):
    return {"name": name, "volumeMounts": [{"name": "tapes", "mountPath": "/t", **mount}]}


def drop(of, key):
    del of[key]


# Each is a way to the tapes of another pod.
PATHS = [
    ABOVE, f"{ABOVE}/", f"{ABOVE}/x", "/dev/fd", "/dev/fd/3", "/", "//", "/.", "/./", "/dev", "/dev/", "/dev/shm", "/dev/shm/", "/dev//shm", "/dev/./shm",
    "/dev/shm/.", f"{TAPES}/", f"{TAPES}//", f"/{TAPES}", f"{TAPES}/.", TAPES[1:], "dev/shm", ".",
    "..", "/x/../dev/shm", "/x/..", f"{TAPES}/team-b_train_1234", f"{TAPES}/team-b_train_1234/x",
    "/proc", "/proc/1/root", "/proc/1/root/dev/shm/memtape", "/proc/self/cwd", "proc/1/root",
    "/run", "/run/shm", "/run/shm/memtape", "/var/run/shm/memtape", "/var", "/var/lib",
    "/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/kubelet/pods/1234/volume-subpaths/",
]
MOUNTS = {
    "whole": lambda spec, train, mount: drop(mount, "subPathExpr"),
    "empty": lambda spec, train, mount: mount.update(subPathExpr=""),
    "subPath": lambda spec, train, mount: (
        drop(mount, "subPathExpr"), mount.update(subPath="team-b_train_1234")),
    "of another pod": lambda spec, train, mount: mount.update(
        subPathExpr="team-b_train_$(MEMTAPE_POD_UID)"),
    "other case": lambda spec, train, mount: mount.update(subPathExpr=EXPR.lower()),
    "escaped": lambda spec, train, mount: mount.update(subPathExpr="$" + EXPR),
    "below": lambda spec, train, mount: mount.update(subPathExpr=EXPR + "/x"),
    "above": lambda spec, train, mount: mount.update(subPathExpr=EXPR + "/.."),
    "other names": lambda spec, train, mount: mount.update(
        subPathExpr=EXPR.replace("MEMTAPE_POD_UID", "POD_UID")),
    "propagation": lambda spec, train, mount: mount.update(mountPropagation="Bidirectional"),
    "second mount": lambda spec, train, mount: train["volumeMounts"].append(
        {"name": "tapes", "mountPath": "/all"}),
    "second volume": lambda spec, train, mount: (
        spec["volumes"].append(host_path(TAPES, "again")),
        train["volumeMounts"].append({"name": "again", "mountPath": "/all"})),
    "second container": lambda spec, train, mount: spec["containers"].append(container("b")),
    "init container": lambda spec, train, mount: spec["initContainers"].append(container("b")),
    "ephemeral container": lambda spec, train, mount: spec.update(
        ephemeralContainers=[container("b")]),
}
VARIABLES = {
    "another container": lambda spec, train, mount: spec["containers"].append(
        container("b", subPathExpr=EXPR)),
    "envFrom": lambda spec, train, mount: (
        drop(train, "env"), train.update(envFrom=[{"configMapRef": {"name": "mine"}}])),
    "missing": lambda spec, train, mount: train.update(env=train["env"][:-1]),
    "value": lambda spec, train, mount: env(
        train, "MEMTAPE_POD_UID", {"name": "MEMTAPE_POD_UID", "value": "1234"}),
    "no value": lambda spec, train, mount: env(
        train, "MEMTAPE_POD_UID", {"name": "MEMTAPE_POD_UID"}),
    "label": lambda spec, train, mount: env(
        train, "MEMTAPE_POD_UID", variable("MEMTAPE_POD_UID", "metadata.labels['uid']")),
    "exchanged": lambda spec, train, mount: env(
        train, "MEMTAPE_NAMESPACE", variable("MEMTAPE_NAMESPACE", "metadata.name")),
    "config map": lambda spec, train, mount: env(train, "MEMTAPE_POD", {
        "name": "MEMTAPE_POD", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}),
    "defined twice": lambda spec, train, mount: train["env"].append(
        {"name": "MEMTAPE_POD_UID", "value": "1234"}),
    "defined before": lambda spec, train, mount: train["env"].insert(
        0, {"name": "MEMTAPE_NAMESPACE", "value": "team-b"}),
    "other case": lambda spec, train, mount: env(
        train, "MEMTAPE_POD", variable("memtape_pod", "metadata.name")),
}
SPACES = {
    "host's /dev/shm": lambda spec, train, mount: spec.update(hostIPC=True),
    "roots of processes": lambda spec, train, mount: spec.update(hostPID=True),
}
STRICT = {
    "a link in another folder": lambda spec, train, mount: spec["volumes"].append(
        host_path("/mnt/data")),
    "privileged": lambda spec, train, mount: train.update(securityContext={"privileged": True}),
    "handles of files": lambda spec, train, mount: train.update(
        securityContext={"capabilities": {"add": ["DAC_READ_SEARCH"]}}),
    "all": lambda spec, train, mount: train.update(
        securityContext={"capabilities": {"add": ["ALL"]}}),
    "all of /proc": lambda spec, train, mount: train.update(
        securityContext={"procMount": "Unmasked"}),
    "a type of SELinux": lambda spec, train, mount: train.update(
        securityContext={"seLinuxOptions": {"type": "spc_t"}}),
    "a type for all containers": lambda spec, train, mount: spec.update(
        securityContext={"seLinuxOptions": {"type": "spc_t"}}),
    **{kind: lambda spec, train, mount, kind=kind: spec["volumes"].append({"name": "v", kind: {}})
       for kind in ["csi", "ephemeral", "flexVolume", "image", "iscsi", "nfs", "rbd", "of later"]},
}
LISTED = ["emptyDir", "configMap", "secret", "downwardAPI", "projected", "persistentVolumeClaim"]
VOLUMES = {kind: {"spec": {kind: {"path": "/mnt/x"}}}
           for kind in ["hostPath", "local", "flexVolume", "of later"]}


class Chart(unittest.TestCase):
    def refused(self, name, object, word, policy=Policy(), namespace="team-a"):
        refusals = policy.refusals(object, namespace)
        self.assertTrue(any(word in of for of in refusals), f"{name}: {refusals}")
        self.assertFalse(any("\n" in of for of in refusals))

    def taken(self, name, object, policy=Policy(), namespace="team-a"):
        self.assertEqual(policy.refusals(object, namespace), [], name)

    def test_the_ways_around(self):
        for path in PATHS:
            self.refused(path, with_path(path), "hostPath")
            for source in ["hostPath", "local"]:
                volume = {"spec": {source: {"path": path}}}
                self.refused(path, volume, "hostPath", namespace="")
        tables = [(MOUNTS, "subPathExpr"), (VARIABLES, "define each once"), (SPACES, "hostPID")]
        for ways, word in tables:
            for name, change in ways.items():
                self.refused(name, changed(change), word)
        for name, change in STRICT.items():
            self.taken(name, changed(change))
            self.refused(name, changed(change), "admission.strict", Policy(strict=True))

        for name, volume in VOLUMES.items():
            self.taken(name, volume, namespace="")
            self.refused(name, volume, "admission.strict", Policy(strict=True), namespace="")

    def test_what_the_agent_mounts_is_closed(self):
        mounted = re.findall(r"hostPath:\n +path: \{\{ (?:clean )?\.Values\.([\w.]+) \}\}", AGENT)
        # And the folder that `agent.tapeDir` is in.
        self.assertEqual(len(mounted) + 1, AGENT.count("hostPath:"))
        for path in [value(of) for of in mounted]:
            for each in [f"{path}/", f"{path}/x", str(pathlib.PurePath(path).parent)]:
                self.refused(each, with_path(each), "hostPath")
            if path != TAPES:
                self.refused(path, with_path(path), "hostPath")

    @unittest.skipIf(os.getuid(), "only root can give a folder away")
    def test_what_is_not_roots_is_left_alone(self):
        """The first container of the agent's pod."""
        script = textwrap.dedent(re.search(r"- \|\n((?: {14}.*\n)+)", AGENT)[1])
        with tempfile.TemporaryDirectory() as above:
            tapes, target = pathlib.Path(above, "memtape"), pathlib.Path(above, "target")
            mode = lambda path: path.stat().st_mode & 0o7777

            def run(word):
                done = subprocess.run(["sh", "-c", script, tapes], capture_output=True, text=True)
                self.assertIn(word, done.stderr)
                return done.returncode

            (target / "pods").mkdir(parents=True)
            before = [mode(target), mode(target / "pods")]
            tapes.symlink_to(target)
            self.assertEqual(run("memtape is a link, or not root's"), 1)
            tapes.unlink()
            tapes.mkdir()
            (tapes / "pods").symlink_to(target)
            self.assertEqual(run("pods is a link, or not root's"), 1)
            (tapes / "pods").unlink()
            (tapes / "pods").mkdir()
            self.assertEqual([mode(target), mode(target / "pods")], before)
            os.chown(tapes, 65534, 65534)
            self.assertEqual(run("memtape is a link, or not root's"), 1)
            os.chown(tapes, 0, 0)
            self.assertEqual(run(""), 0)
            self.assertEqual([mode(tapes), mode(tapes / "pods")], [0o700, 0o1777])

    def test_what_is_taken(self):
        for policy in [Policy(), Policy(strict=True)]:
            self.taken("the example", example(), policy)
            self.taken("no volume", {"spec": {"containers": [{"name": "c"}]}}, policy)
            several = lambda spec, train, mount: (
                spec["containers"].append(copy.deepcopy(train)), train["env"].reverse())
            self.taken("two containers", changed(several), policy)
            for kind in LISTED:
                volume = {"name": "v", kind: {}}
                self.taken(kind, {"spec": {"containers": [], "volumes": [volume]}}, policy)
            for kind in ["csi", "nfs", "iscsi", "fc"]:
                self.taken(kind, {"spec": {kind: {}}}, policy, namespace="")
        for path in ["/mnt/data", "/dev/shm/memtape-other", "/dev/infiniband", "/var/log", "/runs",
                     "/var/lib/kubelet/device-plugins/", "/data/.cache", "/data/..x"]:
            self.taken(path, with_path(path))
            self.taken(path, {"spec": {"hostPath": {"path": path}}}, namespace="")
        for namespace in ["memtape", "kube-system"]:
            self.taken(namespace, with_path("/"), namespace=namespace)
        self.refused("memtape-b", with_path("/"), "hostPath", namespace="memtape-b")

    def test_nothing_is_left_out(self):
        policy, binding = rendered()
        spec = policy["spec"]
        self.assertEqual(spec["failurePolicy"], "Fail")
        self.assertEqual(binding["spec"], {
            "policyName": policy["metadata"]["name"], "validationActions": ["Deny"]})
        rules = spec["matchConstraints"]["resourceRules"]
        asked = {(verb, of) for rule in rules for verb in rule["operations"]
                 for of in rule["resources"]}
        for each in [("CREATE", "pods"), ("UPDATE", "pods/ephemeralcontainers"),
                     ("CREATE", "persistentvolumes")]:
            self.assertIn(each, asked)

    def test_the_coordinator_starts_with_tls_unless_values_say_otherwise(self):
        text = (ROOT / "deploy/helm/memtape/templates/coordinator.yaml").read_text()
        before, after = text.split("            - --insecure\n")
        self.assertTrue(before.endswith("{{- else if .Values.tls.insecure }}\n"))
        self.assertRegex(after, r'^ +{{- else }}\n +{{- fail "tls.coordinatorSecret is empty')
        self.assertEqual(VALUES["tls"]["insecure"], False)


if __name__ == "__main__":
    unittest.main()
