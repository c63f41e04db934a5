"""The cluster's API through `kubectl`, with the user's own context and rights; what it refuses, in people's terms."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from splitplan.catalogs.errors import LaunchError, Problem, shorten

TIMEOUT_S = 120.0
PROXY_START_S = 15.0
FIELD_MANAGER = "splitplan"

ADVICE = (
    (r"namespaces \"([^\"]+)\" not found", "kubectl create namespace {0}"),
    (
        r"no matches for kind \"([^\"]+)\"",
        "the cluster has no {0}: install what serves it, or another --target or --gang",
    ),
    (r"exceeded quota", "kubectl describe resourcequota; ask for a larger quota or solve with fewer GPUs"),
    (r"admission webhook \"([^\"]+)\" denied", "a policy of the cluster ({0}) refuses it: ask whoever runs it"),
    (r"violates PodSecurity", "a namespace with a laxer pod security level; RDMA needs IPC_LOCK"),
    (r"unknown field \"([^\"]+)\"", "the cluster's version does not know {0}: another --target or a newer cluster"),
    (r"[Uu]nauthorized|must be logged in", "log in: kubectl get pods must work first"),
    (r"\(Forbidden\)|is forbidden", "kubectl auth can-i create statefulsets; ask for the rights"),
    (
        r"connection.*refused|no such host|i/o timeout|[Uu]nable to connect|was refused",
        "kubectl cluster-info must work first",
    ),
    (r"context \"?[^\"]*\"? does not exist|no context exists", "kubectl config get-contexts"),
)
"""What a message of the API server (or of kubectl) asks of the user: the first that matches."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One namespace of one cluster. `context` "" is the current one of the user's own kubeconfig."""

    context: str = ""
    namespace: str = ""

    def run(self, *words: str, text: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """Standard output; LaunchError with every line that kubectl complains in."""
        try:
            done = subprocess.run(
                [*self._start(), *words], input=text, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except FileNotFoundError:
            raise LaunchError(_not_installed()) from None
        except subprocess.TimeoutExpired:
            raise LaunchError(Problem(f"kubectl {words[0]} did not answer within {timeout_s:g} s")) from None
        if done.returncode != 0:
            raise LaunchError(complaints(done.stderr) or [Problem(f"kubectl {words[0]} failed without a word")])
        return done.stdout

    def get(self, *words: str) -> list[dict[str, Any]]:
        """The items of a list of objects."""
        try:
            items: list[dict[str, Any]] = json.loads(self.run("get", *words, "-o", "json"))["items"]
        except (ValueError, KeyError, TypeError):
            raise LaunchError(Problem(f"kubectl get {words[0]} answered something else than a list")) from None
        return items

    def apply(self, manifests: str, *, dry_run: bool = False) -> str:
        """Server-side apply, strict about unknown fields; `dry_run` runs the server's own checks and keeps nothing."""
        flags = ["--dry-run=server"] if dry_run else []
        words = ("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "--validate=strict", "-f", "-")
        return self.run(*words, *flags, text=manifests)

    def delete(self, manifests: str) -> None:
        """Delete what is there of these objects."""
        self.run("delete", "--ignore-not-found", "--wait=false", "-f", "-", text=manifests)

    def current_namespace(self) -> str:
        """The one given, else the context's, else "default"."""
        if self.namespace:
            return self.namespace
        words = ("config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}")
        return self.run(*words).strip() or "default"

    @contextmanager
    def proxy(self, paths: str) -> Iterator[str]:
        """The API on a port of this machine's loopback for the time of the block; only `paths` (a regular expression).

        Gives the base URL. Requests carry the user's rights, so that nothing but these paths must be reachable.
        """
        words = ("proxy", "--port=0", "--address=127.0.0.1", f"--accept-paths={paths}", "--disable-filter=false")
        try:
            process = subprocess.Popen(
                [*self._start(), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except FileNotFoundError:
            raise LaunchError(_not_installed()) from None
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found is None:
                raise LaunchError(complaints(line) or [Problem("kubectl proxy does not start")])
            base = f"http://127.0.0.1:{found.group(1)}"
            _wait_until_open(base)
            yield base
        finally:
            process.terminate()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def _start(self) -> list[str]:
        words = ["kubectl"]
        words += [f"--context={self.context}"] if self.context else []
        return words + ([f"--namespace={self.namespace}"] if self.namespace else [])


def is_installed() -> bool:
    """Whether there is a kubectl."""
    return shutil.which("kubectl") is not None


def complaints(text: str) -> list[Problem]:
    """Each line of kubectl's standard error as a problem, with what to do where we know it; warnings left out."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning:")]
    return [Problem(shorten(_plain(line), 400), next_step=_advice(line)) for line in dict.fromkeys(lines)]


def _plain(line: str) -> str:
    """The server's reason without kubectl's preamble."""
    line = re.sub(r"^(E\d{4} [\d:.]+\s+\d+ \S+\] )", "", line)
    return re.sub(r"^error:? ", "", line).replace("Error from server ", "Kubernetes refuses ", 1)


def _advice(line: str) -> str:
    for pattern, advice in ADVICE:
        found = re.search(pattern, line)
        if found:
            return advice.format(*found.groups())
    return ""


def _not_installed() -> Problem:
    return Problem("kubectl is not installed on this machine", next_step="install it, or --dry-run -o FOLDER")


def _wait_until_open(base: str) -> None:
    """Until the proxy accepts connections; what it answers does not matter."""
    deadline_s = time.monotonic() + PROXY_START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline_s:
        with contextlib.suppress(urllib.error.URLError, OSError):
            try:
                opener.open(base, timeout=2).close()
            except urllib.error.HTTPError:
                return
            return
        time.sleep(0.05)
