"""See scripts/crowded."""

import argparse, base64, http.client, http.server, json, os, pathlib, socket, subprocess, sys, tempfile, threading, time
from urllib.parse import urlparse

delayline = os.path.abspath(os.environ["DELAYLINE"])
options = argparse.ArgumentParser()
for name, default in ("queues", 10_000), ("bindings", 100_000), ("apps", 0), ("seconds", 60):
    options.add_argument(f"--{name}", type=int, default=default)
options.add_argument("--beside", action="append", default=[])
options.add_argument("--inside", action="store_true")
options = options.parse_args()
if not options.inside:
    os.execv(delayline, [delayline, "dev", "--app", "billing", "--", sys.executable, __file__, *sys.argv[1:], "--inside"])

management = urlparse(os.environ["DELAYLINE_MANAGEMENT_URL"])
login = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "Content-Type": "application/json"}


def ask(method, path, body=None, headers=login, timeout=600):
    connection = http.client.HTTPConnection(management.hostname, management.port, timeout=timeout)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer, answer.read()


def define(**objects):
    parts = {"exchanges": [], "queues": [], "bindings": [], **objects}
    answer, text = ask("POST", "/api/definitions/%2F", json.dumps(parts))
    assert answer.status < 300, text


def fill():
    """Classic queues and direct exchanges of others: the cheapest for the broker."""
    each = max(1, options.bindings // max(1, options.queues))
    exchange = {"type": "direct", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    define(exchanges=[{"name": f"other.{number}", **exchange} for number in range(each)])
    for begin in range(0, options.queues, 2_000):
        names = [f"other.{number:05}" for number in range(begin, min(options.queues, begin + 2_000))]
        queue = {"durable": True, "auto_delete": False, "arguments": {}}
        define(queues=[{"name": name, **queue} for name in names])
        define(bindings=[
            {"source": f"other.{number}", "destination": name, "destination_type": "queue",
             "routing_key": f"some.key.{name}", "arguments": {}}
            for name in names for number in range(each if options.bindings else 0)
        ])


class Counting(http.server.BaseHTTPRequestHandler):
    """Passes requests on to the broker, and counts them and their answers."""

    protocol_version = "HTTP/1.1"
    # Otherwise, an answer takes 40 ms more.
    disable_nagle_algorithm = True
    requests = size = 0
    # The broker's CPU seconds, and the time, during requests.
    work = taken = 0

    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        keep = {name: self.headers[name] for name in ("Authorization", "Content-Type") if self.headers[name]}
        body = self.rfile.read(length) if length else None
        work, began = cpu(), time.time()
        answer, text = ask(self.command, self.path, body, keep)
        Counting.work += cpu() - work
        Counting.taken += time.time() - began
        Counting.requests += 1
        Counting.size += len(text)
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(text)))
        if answer.getheader("Date"):
            self.send_header("Date", answer.getheader("Date"))
        self.end_headers()
        try:
            self.wfile.write(text)
        except OSError:
            # The command waited too long.
            self.close_connection = True

    do_PUT = do_DELETE = do_POST = do_GET

    def log_message(self, *_):
        pass


class Proxy(http.server.ThreadingHTTPServer):
    def handle_error(self, request, address):
        """The command may end while it waits for an answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, address)


def node():
    """The process of the broker: it listens on the port of its URL."""
    port = urlparse(os.environ["DELAYLINE_URL"]).port
    inodes = {line.split()[9] for table in ("tcp", "tcp6") for line in open(f"/proc/net/{table}")
              if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(f"socket:[{inode}]" in links for inode in inodes):
            return process
    raise SystemExit("the broker's process was not found")


def cpu():
    fields = (broker / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle():
    """For how many seconds to watch an idle daemon: in an empty vhost, no turn of it takes long."""
    return options.seconds if any(there) else min(60, options.seconds)


def burnt(seconds):
    """The broker's CPU, in percent of a core, and requests and MB a minute."""
    before, requests, size, began = cpu(), Counting.requests, Counting.size, time.time()
    time.sleep(seconds)
    took = time.time() - began
    minutes = took / 60
    return (cpu() - before) / took * 100, (Counting.requests - requests) / minutes, (Counting.size - size) / minutes / 1e6


def row(what, value):
    print(f"{delayline},{version},{','.join(map(str, there))},{what},{value:.3f}", flush=True)
    return value


def took(what, *arguments, runs=1):
    """Seconds for a command: the least of some runs."""
    least = float("inf")
    for _ in range(runs):
        began = time.time()
        done = subprocess.run([delayline, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        least = min(least, time.time() - began)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{what}: {done.stderr}")
    return row(f"{what} s", least)


def served(alone):
    """What an idle daemon costs, and how long its page takes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "DELAYLINE_MANAGEMENT_URL": f"http://127.0.0.1:{proxy.server_address[1]}"}
    daemon = subprocess.Popen(
        [delayline, "serve", "--listen", f"127.0.0.1:{port}", "--no-canary"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    time.sleep(20)
    work, taken, began = Counting.work, Counting.taken, time.time()
    percent, requests, size = burnt(idle())
    work, taken, all = Counting.work - work, Counting.taken - taken, time.time() - began
    row("serve requests/min", requests)
    row("serve MB/min", size)
    def get(path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    began = time.time()
    assert "levels" in json.loads(get("/api/picture"))
    page = row("page s", time.time() - began)
    for line in get("/metrics").splitlines():
        if line.startswith("delayline_management_read_timestamp_seconds "):
            row("age of the page's counts s", time.time() - float(line.split()[1]))
    daemon.terminate()
    daemon.wait()
    # The broker's own share changes with time, so it counts before and after.
    row("broker alone afterwards % of a core", after := burnt(idle() / 2)[0])
    alone = (alone + after) / 2
    row("serve % of a core", percent - alone)
    # The part of it during requests, which varies far less.
    row("serve's requests % of a core", (work * 100 - taken * alone) / all)
    return page


def measure(empty={}):
    """Measures each command; returns the times. `empty` has those in an empty vhost."""
    global delayline
    found, ours = {}, delayline
    # New queues have no statistics at first.
    time.sleep(15)
    alone = row("broker alone % of a core", burnt(idle() / 2)[0])
    for delayline in [ours, *map(os.path.abspath, options.beside)]:
        if there[2]:
            took("apply unchanged", "apply", str(file))
        times = {what: took(what, *what.split(), runs=3) for what in ("verify", "doctor", "status", "app list")}
        times["page"] = served(alone)
        for what, seconds in times.items():
            if delayline in empty:
                row(f"{what} times empty", seconds / empty[delayline][what])
        found[delayline] = times
    delayline = ours
    return found


version = json.loads(ask("GET", "/api/overview")[1])["rabbitmq_version"]
broker = node()
there = (0, 0, 0)
load = " ".join(map(str, os.getloadavg()))
began = time.time()
sum(range(100_000_000))
speed = f"Python adds 100 million numbers in {time.time() - began:.1f} s"
print(f"# {os.cpu_count()} processors, shared by the broker and the commands; load before: {load}; {speed}")
print("command,version,queues,bindings,apps,figure,value", flush=True)
proxy = Proxy(("127.0.0.1", 0), Counting)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
empty = measure()
if options.queues:
    fill()
there = (options.queues, options.bindings, options.apps)
with tempfile.TemporaryDirectory() as folder:
    if options.apps:
        file = pathlib.Path(folder, "platform.toml")
        pathlib.Path(folder, "password").write_text("secret")
        apps = (f"[sets.delay.apps.app-{number:04}]\n" for number in range(options.apps))
        file.write_text('[defaults]\npassword_file = "password"\n[sets.delay]\n' + "".join(apps))
        took("apply", "apply", str(file))
    measure(empty)
