"""An engine measured from outside: a small server whose step times are known must be read as what it is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from splitplan.catalogs.errors import InputError, ProfileError
from splitplan.profiler import engine_source
from splitplan.profiler.engine_http import EngineClient, Stream
from splitplan.profiler.engine_source import EngineFacts, csv_rows, csv_text, gaps_while_all_decode, measure_engine

PREFILL_S_PER_TOKEN = 1e-4
STEP_S = 0.02


class Engine(BaseHTTPRequestHandler):
    """Prefills at 0.1 ms a token and decodes every request at 20 ms a step, together, `slots` at once."""

    server: Server

    def do_GET(self) -> None:
        answers = {
            "/v1/models": json.dumps({"data": [{"id": "toy"}]}),
            "/version": json.dumps({"version": "0.32.0"}),
            "/metrics": f'# HELP x\nvllm:num_preemptions_total{{engine="0"}} {self.server.preemptions}\n',
        }
        found = answers.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write((found or "").encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(body["prompt"]) > self.server.max_tokens:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"message": "too long"}')
            return
        self.server.prompts.append(body["prompt"])
        with self.server.slots:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            time.sleep(PREFILL_S_PER_TOKEN * len(body["prompt"]))
            for index in range(body["max_tokens"]):
                if index:
                    time.sleep(STEP_S)
                self.event({"choices": [{"text": "x"}]})
            self.event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
            self.wfile.write(b"data: [DONE]\n\n")
        self.server.preemptions += self.server.preempt_each

    def event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, slots: int = 64) -> None:
        super().__init__(("127.0.0.1", 0), Engine)
        self.slots = threading.Semaphore(slots)
        self.prompts: list[list[int]] = []
        self.preemptions = 0
        self.preempt_each = 0
        self.max_tokens = 5000

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(engine_source, "DECODE_TOKENS", 14)
    monkeypatch.setattr(engine_source, "REPETITIONS", 2)
    running = Server(getattr(request, "param", 64))
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def test_prefill_and_decode_are_read_from_outside(server: Server) -> None:
    """The times of a prefill and of a step are the server's own; waiting can only add to them."""
    client = EngineClient(server.url)
    samples = measure_engine(client, lengths=(10, 2010), batches=(1, 3), contexts=(16,))
    assert (client.model, client.engine, client.version) == ("toy", "vllm", "0.32.0")
    short, long, *decodes = samples
    assert short.median_s is not None
    assert long.median_s is not None
    assert short.median_s >= 10 * PREFILL_S_PER_TOKEN
    assert long.median_s >= 2010 * PREFILL_S_PER_TOKEN
    for decode in decodes:
        assert decode.median_s is not None
        assert STEP_S <= decode.median_s < 2 * 17 * STEP_S  # a step, not a whole request
        assert decode.remark == ""


def test_no_two_prompts_are_alike(server: Server) -> None:
    """A prefix cache must have nothing to answer with."""
    measure_engine(EngineClient(server.url), lengths=(64,), batches=(2,), contexts=(64,))
    assert len({tuple(prompt) for prompt in server.prompts}) == len(server.prompts) == 5
    assert {len(prompt) for prompt in server.prompts} == {64}


@pytest.mark.parametrize("server", [1], indirect=True)
def test_a_batch_that_the_engine_does_not_run_at_once_is_no_sample(server: Server) -> None:
    """One slot for two requests: they follow each other, and no step of batch two was ever run."""
    (sample,) = measure_engine(EngineClient(server.url), lengths=(), batches=(2,), contexts=(4,))
    assert sample.median_s is None
    assert "did not run 2 sequences at once" in sample.remark


def test_a_request_that_the_engine_refuses_is_recorded(server: Server) -> None:
    server.max_tokens = 100
    samples = measure_engine(EngineClient(server.url), lengths=(200, 10), batches=(), contexts=())
    assert samples[0].median_s is None
    assert "HTTP 400" in samples[0].remark
    assert samples[1].median_s is not None


def test_a_preemption_while_measuring_marks_the_sample_and_keeps_it_out_of_the_file(server: Server) -> None:
    server.preempt_each = 1
    client = EngineClient(server.url)
    samples = measure_engine(client, lengths=(10,), batches=(), contexts=())
    assert samples[0].remark == "preempted"
    with pytest.raises(ProfileError, match="not one step"):
        csv_rows(samples, client, EngineFacts("h100-sxm", 1))


def test_the_file_is_what_calibrate_reads(server: Server, tmp_path: Any) -> None:
    from splitplan.planner.calibrate.points import read_points

    client = EngineClient(server.url)
    samples = measure_engine(client, lengths=(10,), batches=(2,), contexts=(16,))
    facts = EngineFacts("h100-sxm", 2, model="llama-3.1-8b", date="2026-11-29")
    path = tmp_path / "points.csv"
    path.write_text(csv_text(csv_rows(samples, client, facts)))
    prefill, decode = read_points(path)
    assert (prefill.gpu, prefill.tp, prefill.model, prefill.input_tokens) == ("h100-sxm", 2, "llama-3.1-8b", 10)
    assert prefill.ttft.p50_s == pytest.approx(samples[0].median_s, abs=1e-6)
    assert decode.concurrency == 2
    assert decode.tpot.p50_s == pytest.approx(samples[1].median_s, abs=1e-6)


def test_only_gaps_with_the_whole_batch_decoding_count() -> None:
    """The first stream runs alone until 10; from the second's second token on both are counted, until one ends."""
    first = Stream(0.0, [1.0, 2.0, 3.0, 11.0, 12.0, 13.0])
    second = Stream(0.0, [9.0, 10.5, 11.5, 12.5, 20.0, 29.0])
    assert gaps_while_all_decode([first, second]) == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert gaps_while_all_decode([first, Stream(0.0, [1.0])]) == []


def test_nothing_that_listens_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ProfileError, match="does not answer"):
            EngineClient(url, timeout_s=2).check()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", ""])
def test_an_address_that_is_none_is_an_input_error(url: str) -> None:
    with pytest.raises(InputError, match="--url"):
        EngineClient(url)


def test_a_model_that_is_not_served_is_named(server: Server) -> None:
    with pytest.raises(ProfileError, match="'other' is not served"):
        EngineClient(server.url, model="other").check()
