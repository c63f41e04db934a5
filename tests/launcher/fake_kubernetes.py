"""A Kubernetes API server for one test: enough of the API for kubectl to apply, read and delete, in plain Python.

It stands in for a server and its kubelets. StatefulSets and Deployments get pods at once; a pod answers through the
server's proxy from whatever process of this machine `backends` names for it, which is how a mock engine plays a pod.
What it does not do: schedule, pull images, validate schemas (unknown top-level keys of a spec apart), authenticate.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Manifest = dict[str, Any]
Admission = Callable[[Manifest], str]
"""Why an object is refused; "" for admitted."""

GROUPS: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "v1": {
        "nodes": ("Node", False),
        "pods": ("Pod", True),
        "services": ("Service", True),
        "namespaces": ("Namespace", False),
    },
    "apps/v1": {"statefulsets": ("StatefulSet", True), "deployments": ("Deployment", True)},
    "policy/v1": {"poddisruptionbudgets": ("PodDisruptionBudget", True)},
    "networking.k8s.io/v1": {"networkpolicies": ("NetworkPolicy", True)},
}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class FakeKubernetes:
    """Objects by (group version, resource, namespace, name), and what was asked."""

    def __init__(self, backends: Mapping[str, str], nodes: Mapping[str, int]) -> None:
        self.backends = dict(backends)  # pod or service name → http://127.0.0.1:PORT
        self.objects: dict[tuple[str, str, str, str], Manifest] = {}
        self.asked: list[tuple[str, str]] = []
        self.admission: Admission = lambda _: ""
        self.pod_status: Callable[[str], Manifest] = lambda _: {"phase": "Running"}
        self.lock = threading.Lock()
        for name, gpus in nodes.items():
            self.objects["v1", "nodes", "", name] = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}},
            }

    def kept(self, resource: str) -> list[Manifest]:
        """Stored objects of a resource."""
        with self.lock:
            return [value for key, value in self.objects.items() if key[1] == resource]

    def discovery(self, path: str) -> Manifest | None:
        """What the server serves, or None for other paths."""
        if path == "/version":
            return {"major": "1", "minor": "37", "gitVersion": "v1.37.1"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [
                {"name": group.split("/")[0], "versions": [version], "preferredVersion": version}
                for group in GROUPS
                if group != "v1"
                for version in [{"groupVersion": group, "version": group.split("/")[1]}]
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        group = path.removeprefix("/apis/") if path.startswith("/apis/") else path.removeprefix("/api/")
        if group in GROUPS:
            resources = [
                {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": VERBS}
                for name, (kind, namespaced) in GROUPS[group].items()
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}
        if path == "/openapi/v3":
            paths = {
                f"{'api' if group == 'v1' else 'apis'}/{group}": {"serverRelativeURL": f"/openapi/v3/{group}"}
                for group in GROUPS
            }
            return {"paths": paths}
        group = path.removeprefix("/openapi/v3/")
        return openapi(group) if group in GROUPS else None

    def apply(self, key: tuple[str, str, str, str], found: Manifest, *, keep: bool) -> Manifest:
        """Store an object and make its pods, unless this is a dry run."""
        with self.lock:
            merged = {**self.objects.get(key, {}), **found}
            merged["metadata"] = {**found["metadata"], "namespace": key[2], "uid": "-".join(key).replace("/", "-")}
            if keep:
                self.objects[key] = merged
                self._make_pods(merged, key[2])
        return merged

    def _make_pods(self, owner: Manifest, namespace: str) -> None:
        if owner["kind"] not in ("StatefulSet", "Deployment"):
            return
        name, template = owner["metadata"]["name"], owner["spec"]["template"]
        for number in range(owner["spec"]["replicas"]):
            pod = f"{name}-{number}" if owner["kind"] == "StatefulSet" else f"{name}-5f7d9c-{number}x"
            self.objects["v1", "pods", namespace, pod] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": pod, "namespace": namespace, "owner": name},
                "spec": template["spec"],
                "status": self.pod_status(pod),
            }

    def delete(self, key: tuple[str, str, str, str]) -> bool:
        """Forget an object and the pods it owns; whether it was there."""
        with self.lock:
            owned = [
                other
                for other, value in self.objects.items()
                if key[1] in ("statefulsets", "deployments") and value["metadata"].get("owner") == key[3]
            ]
            for other in owned:
                del self.objects[other]
            return self.objects.pop(key, None) is not None


def openapi(group: str) -> Manifest:
    """Only what kubectl looks for: that PATCH knows dryRun and fieldValidation, by group, version and kind."""
    name, _, version = group.rpartition("/")
    query = [{"name": each, "in": "query", "schema": {"type": "string"}} for each in ("dryRun", "fieldValidation")]
    paths = {}
    for resource, (kind, _) in GROUPS[group].items():
        base = f"/api/{group}" if group == "v1" else f"/apis/{group}"
        patch = {"x-kubernetes-group-version-kind": {"group": name, "version": version, "kind": kind}}
        paths[f"{base}/namespaces/{{namespace}}/{resource}/{{name}}"] = {"patch": {**patch, "parameters": query}}
    return {"openapi": "3.0.0", "info": {"title": "fake", "version": "1"}, "paths": paths}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeKubernetes

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, document: Manifest, status: int = 200) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}
        self._send({**document, "message": message, "metadata": {}}, status)

    def _handle(self) -> None:
        url = urlsplit(self.path)
        self.fake.asked.append((self.command, self.path))
        body = self._body()
        found = self.fake.discovery(url.path)
        if found is not None and self.command == "GET":
            self._send(found)
            return
        key, rest = split(url.path)
        if key is None:
            self._refuse(404, "NotFound", f"the server could not find the requested resource {url.path}")
        elif rest[:1] == ["proxy"]:
            self._proxy(key, "/" + "/".join(rest[1:]), body)
        elif rest[:1] == ["log"]:
            self._text(f"log of {key[3]}\n")
        else:
            self._object(key, body, parse_qs(url.query))

    do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815

    def _object(self, key: tuple[str, str, str, str], body: bytes, query: Mapping[str, list[str]]) -> None:
        kind = GROUPS[key[0]][key[1]][0]
        if self.command == "PATCH":
            wanted = yaml.safe_load(body)
            reason = self.fake.admission(wanted)
            if reason:
                self._refuse(403, "Forbidden", f'{key[1]} "{key[3]}" is forbidden: {reason}')
                return
            self._send(self.fake.apply(key, wanted, keep="dryRun" not in query))
        elif self.command == "DELETE":
            if self.fake.delete(key):
                self._send({"kind": "Status", "apiVersion": "v1", "status": "Success"})
            else:
                self._refuse(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        elif key[3]:
            with self.fake.lock:
                found = self.fake.objects.get(key)
            if found:
                self._send(found)
            else:
                self._refuse(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        else:
            self._send({"kind": f"{kind}List", "apiVersion": key[0], "metadata": {}, "items": self._listed(key, query)})

    def _listed(self, key: tuple[str, str, str, str], query: Mapping[str, list[str]]) -> list[Manifest]:
        pairs = [part.split("=") for part in ",".join(query.get("labelSelector", [])).split(",") if part]
        with self.fake.lock:
            items = [value for other, value in self.fake.objects.items() if other[:2] == key[:2]]
        return [
            item
            for item in items
            if all(item["metadata"].get("labels", {}).get(name) == value for name, value in pairs)
        ]

    def _proxy(self, key: tuple[str, str, str, str], path: str, body: bytes) -> None:
        name = key[3].split(":")[1]
        backend = self.fake.backends.get(name)
        if backend is None:
            self._refuse(503, "ServiceUnavailable", f"no endpoints available for {name}")
            return
        address = urlsplit(backend)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        try:
            connection.request(self.command, path, body or None, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            self.send_response(reply.status)
            for header, value in reply.getheaders():
                if header.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(header, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while data := reply.read1(65536):
                self.wfile.write(data)
                self.wfile.flush()
            self.close_connection = True
        except OSError:
            self._refuse(502, "BadGateway", f"{name} does not answer")
        finally:
            connection.close()

    def _text(self, text: str) -> None:
        raw = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def split(path: str) -> tuple[tuple[str, str, str, str] | None, list[str]]:
    """((group version, resource, namespace, name), what follows) of an API path; (None, []) for others."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, parts = "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, parts = "/".join(parts[1:3]), parts[3:]
    else:
        return None, []
    namespace = ""
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    if group not in GROUPS or not parts or parts[0] not in GROUPS[group]:
        return None, []
    return (group, parts[0], namespace, parts[1] if len(parts) > 1 else ""), parts[2:]


@contextmanager
def serving(
    backends: Mapping[str, str], nodes: Mapping[str, int], folder: Path
) -> Iterator[tuple[FakeKubernetes, Path]]:
    """A server for the time of the block, and a kubeconfig that leads to it."""
    fake = FakeKubernetes(backends, nodes)
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "serving"}}],
        "users": [{"name": "fake", "user": {}}],
    }
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield fake, kubeconfig
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
