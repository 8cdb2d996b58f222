"""Stanford CoreNLP servers, through ``stanza.server.CoreNLPClient``.

Whoever may send requests to such a server can make it read files, fetch addresses, load classes and deserialize Java
objects. The server listens on all interfaces of the machine, and has no option for another address. So a server that we
start has a random user name and password.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
import warnings
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Dict, Mapping, Optional, Tuple
from urllib.parse import unquote, urlsplit

import requests
from google.protobuf.message import DecodeError
from stanza.protobuf import Document
from stanza.server import CoreNLPClient, StartServer
from stanza.server.client import (
    AnnotationException,
    PermanentlyFailedException,
    TimeoutException,
    resolve_classpath,
)

from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.files import name_file_if_disk_full
from fairseq_ctxgates.processes import ending_with_parent
from fairseq_ctxgates.relations.extraction.extractor import TRIAL_SENTENCE, NotParsed

logger = logging.getLogger(__name__)
# stanza returns an answer that it cannot read as a document without sentences, which is noticed.
warnings.filterwarnings("ignore", "Failed to decode a serialized output from CoreNLP server", RuntimeWarning)

# OpenIE iterates over sets in the order of their elements' identity hashes, which Java draws at random at each start:
# on 400 sentences of Multi30k it found 1,473 or 1,624 tuples. With equal hashes the order is that of insertion, and
# each start finds the same tuples.
# When its memory is used up, Java can go on for minutes without answering any request in time.
JAVA_OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2", "-XX:+ExitOnOutOfMemoryError")
CONNECTION_SECONDS = 10  # until a server that should already run must have answered
PING_SECONDS = 10  # time limit of one request that asks whether it runs
TRIAL_SECONDS = 40  # time limit for a request that needs no models
START_SECONDS = 300  # time limit for the start or restart of a server, and for loading its models
GRACE_SECONDS = 10  # what a server may take to say that it has exceeded the time limit of a request
SPLIT_ONLY = {"annotators": "tokenize,ssplit", "tokenize.whitespace": "true", "ssplit.eolonly": "true"}
TRIAL_TEXT = " ".join(TRIAL_SENTENCE)

Credentials = Tuple[str, str]  # user name and password

INSTALLATION = (
    "run `make corenlp` in a clone of this project, or python -c 'import stanza; stanza.install_corenlp()', and set "
    "CORENLP_HOME if the folder of CoreNLP is not ~/stanza_corenlp"
)


class ServerLost(Exception):
    """The server does not answer, or no longer answers."""


class CoreNLPServer(ABC):
    """A CoreNLP server; a subclass defines how it is started, restarted and closed.

    Args:
        url: address of the server, without credentials
        credentials: user name and password, if the server asks for them
        request: annotators and properties of each request
        timeout: time limit of a request, in seconds
    """

    def __init__(
        self, url: str, credentials: Optional[Credentials], request: Mapping[str, str], timeout: float
    ) -> None:
        self.url = url
        self.credentials = credentials
        self.request = dict(request)
        self.milliseconds = max(1, int(1000 * timeout))
        self.requests_in_progress = 0
        self.failures_in_a_row = 0  # on sentences that another server parsed
        self._clients: Dict[Tuple[str, int], CoreNLPClient] = {}
        self._closed = threading.Event()

    @abstractmethod
    def start(self) -> None:
        """Make sure that the server runs, and check its models; UserError if this fails."""

    @abstractmethod
    def restart(self) -> None:
        """Make sure that a lost server runs again; UserError if this fails."""

    def close(self) -> None:
        """Refuse further requests: the threads of an interrupted run must not finish their shards."""
        self._closed.set()

    def check_open(self) -> None:
        """Raise UserError after :meth:`close`."""
        if self._closed.is_set():
            raise UserError("the extraction was stopped")

    def annotate(self, text: str) -> Document:
        """CoreNLP's protobuf document of a text.

        Raises:
            NotParsed: the server answered with an error, or that it exceeded the time limit
            ServerLost: the server did not answer
            UserError: the server refuses the user name and password, or was closed
        """
        self.check_open()
        return self._request(text, self.request, self.milliseconds)

    def _request(self, text: str, properties: Mapping[str, str], milliseconds: int) -> Document:
        """The document of a text; errors as in :meth:`annotate`."""
        try:
            # Without reset_default the result would depend on the default properties of the server.
            return self._client(milliseconds).annotate(
                text,
                properties={**properties, "timeout": str(milliseconds)},
                reset_default=True,
                auth=self.credentials,
                proxies=self._proxies,
            )
        except TimeoutException as error:
            seconds = milliseconds / 1000 + GRACE_SECONDS
            raise ServerLost(f"it gave no answer in {seconds:g} seconds") from error
        except AnnotationException as error:
            status = _http_status(error.__cause__)
            if status == requests.codes.unauthorized:
                raise UserError(
                    f"the CoreNLP server at {self.url} cannot be used: it refuses the user name and password (401); "
                    f"give --corenlp-url http://user:password@HOST:PORT, or name them in ~/.netrc"
                ) from error
            if status is not None:
                raise NotParsed(f"HTTP {status}: {one_line(error)}") from error
            raise ServerLost(str(error)) from error
        except (DecodeError, IndexError) as error:  # IndexError: an empty answer
            raise ServerLost(f"the answer is not a CoreNLP document ({error})") from error

    def _client(self, milliseconds: int) -> CoreNLPClient:
        """The client that sends requests with this time limit. It is made once, because stanza keeps each client until
        the process ends."""
        if (self.url, milliseconds) not in self._clients:
            self._clients[self.url, milliseconds] = CoreNLPClient(
                start_server=StartServer.DONT_START,
                endpoint=self.url,
                timeout=(milliseconds + 1000 * GRACE_SECONDS) / 2,  # stanza waits twice as long
                output_format="serialized",
            )
        return self._clients[self.url, milliseconds]

    @property
    def _proxies(self) -> Optional[Dict[str, str]]:
        """No proxy for a server on this machine; for other servers None, which means the proxies of the environment.
        Each call makes a new dictionary, because requests changes the one that it gets."""
        return {"http": "", "https": ""} if is_loopback(self.url) else None

    def check(self) -> None:
        """Check that the server answers as CoreNLP does, and that it has the models, which it then loads.

        Raises:
            UserError: the server is not a CoreNLP server, does not answer, or has no models for the language
        """
        self._split_trial()
        try:
            document = self._request(TRIAL_TEXT, self.request, 1000 * START_SECONDS)
        except (NotParsed, ServerLost) as error:
            raise UserError(f"the CoreNLP server at {self.url} cannot be used: {error}{self._remedy()}") from error
        tags = [token.pos for sentence in document.sentence for token in sentence.token]
        language = self.request["pipelineLanguage"]
        # Without a language's models the server silently uses the English models. Only these tag a full stop as ".".
        if not tags or (language != "english" and tags[-1] == "."):
            raise UserError(
                f"the CoreNLP server at {self.url} has no models for {language}: add their jar, "
                f"stanford-corenlp-VERSION-models-{language}.jar, to the folder of CoreNLP"
            )

    def _split_trial(self) -> None:
        """Have a sentence split into words, which needs no models and little time; UserError if this fails."""
        try:
            document = self._request(TRIAL_TEXT, SPLIT_ONLY, 1000 * TRIAL_SECONDS)
        except (NotParsed, ServerLost) as error:
            raise UserError(
                f"what listens at {self.url} cannot be used as a CoreNLP server, it does not even split a sentence "
                f"into words: {error}{self._remedy()}"
            ) from error
        if [token.word for sentence in document.sentence for token in sentence.token] != list(TRIAL_SENTENCE):
            raise UserError(
                f"what listens at {self.url} is not a CoreNLP server: its answer is not a CoreNLP document"
                f"{self._remedy()}"
            )

    @abstractmethod
    def _remedy(self) -> str:
        """What to do about a server that cannot be used, as the end of an error message."""

    def ping(self) -> str:
        """Empty if the server answers that it is alive; otherwise what is wrong."""
        try:
            response = requests.get(
                f"{self.url}/ping", auth=self.credentials, proxies=self._proxies, timeout=PING_SECONDS
            )
        except requests.exceptions.RequestException as error:
            return type(error).__name__
        return "" if response.ok else f"HTTP {response.status_code}"


def is_loopback(url: str) -> bool:
    """Whether an address is of the loopback interface."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _http_status(error: Optional[BaseException]) -> Optional[int]:
    """The status that a server answered with, if that is the error; otherwise None."""
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return error.response.status_code
    return None


class ExternalServer(CoreNLPServer):
    """A CoreNLP server that the user started.

    Args:
        address: ``http://HOST:PORT``, or ``http://user:password@HOST:PORT`` with other characters as %XX

    Raises:
        UserError: this is not an address
    """

    def __init__(self, address: str, request: Mapping[str, str], timeout: float) -> None:
        try:
            parts = urlsplit(address.rstrip("/"))
            parts.port  # noqa: B018  raises ValueError
        except ValueError:
            parts = urlsplit("")
        user_and_password, _, host = parts.netloc.rpartition("@")
        if parts.scheme not in ("http", "https") or not host:
            shown = address.rpartition("@")[2]  # without the password
            raise UserError(f"--corenlp-url {shown} is not an address such as http://localhost:9000")
        credentials = None
        if user_and_password:
            user, _, password = user_and_password.partition(":")
            credentials = unquote(user), unquote(password)
        super().__init__(parts._replace(netloc=host).geturl(), credentials, request, timeout)

    def start(self) -> None:
        """Check that the server answers and has the models; UserError if not."""
        self._wait_until_alive(CONNECTION_SECONDS)
        self.check()

    def restart(self) -> None:
        """Wait until the user has restarted the server; UserError if this takes too long."""
        self._wait_until_alive(START_SECONDS)
        self.check()

    def _wait_until_alive(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            problem = self.ping()
            if not problem:
                return
            if time.monotonic() > end:
                raise UserError(f"no CoreNLP server answers at {self.url} (/ping: {problem}){self._remedy()}")
            self._closed.wait(1)
            self.check_open()

    def _remedy(self) -> str:
        return (
            "; start one there, give the address of one that works, or none, and run the same command again (ctxgates "
            "relations continues where it stopped)"
        )


class ManagedServer(CoreNLPServer):
    """A CoreNLP server that this process starts, restarts after a crash, and stops.

    Args:
        memory: maximum memory of the Java virtual machine, such as ``4G``
    """

    def __init__(self, request: Mapping[str, str], timeout: float, memory: str) -> None:
        user, password = secrets.token_hex(16), secrets.token_hex(16)
        super().__init__("", (user, password), request, timeout)
        self.memory = memory
        self._folder = tempfile.TemporaryDirectory(prefix="corenlp-")  # which nobody else can read
        self._properties = Path(self._folder.name) / "server.properties"
        self._properties.touch(mode=0o600)
        with name_file_if_disk_full(self._properties):
            self._properties.write_text(f"username = {user}\npassword = {password}\n")
        self._process: Optional[CoreNLPClient] = None
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self._starter = ThreadPoolExecutor(max_workers=1)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the server, wait until it answers, and check its models.

        Raises:
            UserError: Java or CoreNLP is not installed, or the server does not start
        """
        check_installation()
        for is_last_attempt in (False, False, True):
            self.check_open()
            try:
                self._process = self._start_process()
                self._wait_until_alive()
                break
            except (PermanentlyFailedException, UserError) as error:
                # Perhaps another process took the port before Java did, of which CoreNLP's log says nothing.
                if is_last_attempt or not self._has_ended():
                    raise UserError(str(error)) from error
                self._stop_process()
        self.check()

    def _start_process(self) -> CoreNLPClient:
        with closing(socket.socket()) as probe:
            probe.bind(("localhost", 0))
            self.url = f"http://localhost:{probe.getsockname()[1]}"
        process = CoreNLPClient(
            start_server=StartServer.FORCE_START,
            endpoint=self.url,
            timeout=max(self.milliseconds, 1000 * START_SECONDS),  # upper bound: each request has its own time limit
            # Upper bound: each request has a thread, and one that was given up may hold its thread for long.
            threads=4 * (os.cpu_count() or 1),
            memory=self.memory,
            properties="english",  # any language name: without one the client writes a properties file
            preload=False,  # check loads the models, with the properties of the requests
            be_quiet=True,  # otherwise the server prints each sentence
            stdout=self._log,
            stderr=self._log,
        )
        process.be_quiet = False  # otherwise the client discards the server's error messages
        # CoreNLP writes the key that shuts it down into Java's temporary folder, for everybody to read.
        process.start_cmd[1:1] = [*JAVA_OPTIONS, f"-Djava.io.tmpdir={self._folder.name}"]
        process.start_cmd += ["-props", str(self._properties)]  # others can read the arguments of a process
        process.start_cmd = ending_with_parent(process.start_cmd)
        # The server ends with the thread that starts it, so this thread lives as long as this object.
        self._starter.submit(process.start).result()
        return process

    def _wait_until_alive(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.ping():
            self.check_open()
            if self._has_ended() or time.monotonic() > end:
                raise UserError(f"the CoreNLP server does not start{self._remedy()}")
            time.sleep(0.2)

    def _remedy(self) -> str:
        log = self._end_of_log()
        if "OutOfMemoryError" in log:
            return (
                f"; Java has run out of memory: give it more than {self.memory} (ctxgates relations --corenlp-memory, "
                f"or a server of your own by --corenlp-url)"
            )
        return f"; the end of its log: {log}"

    def _has_ended(self) -> bool:
        return self._process is None or self._process.server is None or self._process.server.poll() is not None

    def _end_of_log(self) -> str:
        self._log.flush()
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - 1000))
        return " ".join(self._log.read().split()) or "its log is empty"

    def restart(self) -> None:
        """Restart the server, unless another thread has already done this.

        Raises:
            UserError: the server does not start
        """
        with self._lock:
            self.check_open()
            if self._works():
                return
            logger.warning(f"the CoreNLP server crashed or hangs, and is restarted{self._remedy()}")
            self._stop_process()
            self.start()

    def _works(self) -> bool:
        """Whether the server answers a request."""
        if self._has_ended() or self.ping():
            return False
        try:
            self._split_trial()
        except UserError:
            return False
        return True

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def close(self) -> None:
        """Stop the server, and remove its files."""
        super().close()
        self._stop_process()
        self._starter.shutdown()
        self._log.close()
        self._folder.cleanup()


def check_installation() -> None:
    """Raise UserError unless Java and CoreNLP are where stanza looks for them."""
    if shutil.which("java") is None:
        raise UserError("Java is not on PATH, and CoreNLP needs it: install Java 17 (apt-get install openjdk-17-jre)")
    try:
        classpath = resolve_classpath()
    except FileNotFoundError as error:
        raise UserError(f"Stanford CoreNLP is not installed: {INSTALLATION}") from error
    folder = Path(classpath)
    if folder.name == "*" and not any(folder.parent.glob("*corenlp*.jar")):
        raise UserError(f"{folder.parent} does not contain CoreNLP: {INSTALLATION}")
